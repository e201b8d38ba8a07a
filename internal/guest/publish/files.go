package publish

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// files writes shares into a folder for each virtual machine.
//
// A virtual machine may have write access to its folder, so its content is not trusted: links out
// of it are not followed, and existing files are not opened.
type files struct {
	dir     string
	keepFor time.Duration // keepFolderFor
	log     *slog.Logger

	root         *os.Root // of dir; nil while it is not open
	lock         *os.File // dir, locked
	triedAt      time.Time
	folders      map[workload.ID]*folder
	round        uint64          // counts calls of update
	leftover     map[string]bool // folders of an earlier run, not claimed yet
	opened       time.Time
	dirOutage    outage
	folderOutage outage // of individual virtual machines
}

// An entry is what to write into the folder of one virtual machine.
type entry struct {
	serial     int64
	id         workload.ID
	name, uuid string
	gid        int   // group of the hypervisor's process
	energy     int64 // uJ
	line       []byte
}

// A folder is the folder of one virtual machine.
type folder struct {
	name, uuid string
	root, zone *directory
	opened     time.Time
	round      uint64    // of the latest update that included it
	goneSince  time.Time // when its virtual machine disappeared; zero while it exists
}

const (
	// markFile marks a folder that was created here.
	markFile = ".mete"
	// zoneName is the name of a package zone in powercap.
	zoneName = "package-0\n"
	// keepFolderFor is how long a folder is kept after its virtual machine disappeared, longer than
	// detecting virtual machines takes. A folder that is shared with a virtual machine cannot be
	// recreated: the virtual machine would not see the new one.
	keepFolderFor = time.Minute
)

// update writes the files of the virtual machines in list, and removes others.
func (f *files) update(now time.Time, list []entry) {
	if f.root == nil && now.Sub(f.triedAt) < retryEvery && !f.triedAt.IsZero() {
		return
	}
	f.triedAt = now
	err := f.open(now)
	if f.dir == DefaultDir && errors.Is(err, fs.ErrNotExist) {
		f.close()
		return // the default directory is optional
	}
	if f.dirOutage.report(f.log, "shares cannot be written to files; retrying", "shares are written to files again", err, "path", f.dir); err != nil {
		f.close()
		return
	}
	f.expire(now, list)
	var failed []string
	var first error
	for i := range list {
		e := &list[i]
		if err := f.write(now, e); err != nil {
			failed = append(failed, energyshare.Printable(e.name, 64))
			first = errors.Join(first, err)
		}
	}
	if len(failed) > 0 {
		first = fmt.Errorf("%d of %d virtual machines (%s): %w", len(failed), len(list), strings.Join(failed[:min(len(failed), 5)], ", "), firstError(first))
	}
	f.folderOutage.report(f.log, "shares of some virtual machines cannot be written to files; retrying", "shares of all virtual machines are written to files again", first, "path", f.dir)
	if len(f.leftover) > 0 && now.Sub(f.opened) >= f.keepFor {
		f.removeLeftover()
	}
}

// expire removes the folders of virtual machines that have been missing from the list for keepFor.
func (f *files) expire(now time.Time, list []entry) {
	f.round++
	for i := range list {
		if d := f.folders[list[i].id]; d != nil {
			d.round = f.round
		}
	}
	for id, d := range f.folders {
		switch {
		case d.round == f.round:
			d.goneSince = time.Time{}
		case d.goneSince.IsZero():
			d.goneSince = now
		case now.Sub(d.goneSince) >= f.keepFor:
			delete(f.folders, id)
			f.remove(d)
		}
	}
}

// firstError returns the first of joined errors.
func firstError(err error) error {
	for {
		j, ok := err.(interface{ Unwrap() []error })
		if !ok || len(j.Unwrap()) == 0 {
			return err
		}
		err = j.Unwrap()[0]
	}
}

// open opens and locks the directory, or reopens it if it was removed or replaced.
func (f *files) open(now time.Time) error {
	if f.root != nil {
		was, err := f.lock.Stat()
		is, gone := os.Stat(f.dir)
		if err == nil && gone == nil && os.SameFile(was, is) {
			return nil
		}
		f.close()
	}
	lock, err := os.Open(f.dir)
	if err != nil {
		return fault.WithHint(err, "create the directory, or name another one with --vm-shares")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fault.WithHint(fmt.Errorf("%s: another process writes there: %w", f.dir, fault.ErrConflict),
			"only one agent can write there: give the other agent another directory, or none, with --vm-shares"), lock.Close())
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	f.root, f.lock, f.opened, f.leftover = root, lock, now, map[string]bool{}
	list, err := fs.ReadDir(root.FS(), ".")
	for _, d := range list {
		if !d.IsDir() {
			continue
		}
		if _, err := root.Lstat(d.Name() + "/" + markFile); err == nil {
			f.leftover[d.Name()] = true
		}
	}
	return err
}

// write writes one share.
func (f *files) write(now time.Time, e *entry) error {
	d := f.folders[e.id]
	if d == nil {
		d = &folder{name: f.folderName(e), uuid: e.uuid}
		f.folders[e.id] = d
	}
	// An open folder may have been removed or moved.
	if d.root != nil && now.Sub(d.opened) >= retryEvery {
		d.close()
	}
	err := d.write(f, now, e)
	if errors.Is(err, fs.ErrNotExist) {
		d.close()
		err = d.write(f, now, e)
	}
	return err
}

// folderName returns the name of the folder for a virtual machine. A name in use is taken only by
// the same machine after a restart.
func (f *files) folderName(e *entry) string {
	name := pathName(e.name, e.uuid, e.id)
	for id, d := range f.folders {
		if d.name != name {
			continue
		}
		if !d.goneSince.IsZero() || d.uuid == e.uuid && e.uuid != "" {
			delete(f.folders, id)
			d.close()
			return name
		}
		return pathName(e.name+"."+string(e.id), "", e.id)
	}
	return name
}

// pathName converts a domain name to a file name, writing forbidden characters as %XX.
func pathName(name, uuid string, id workload.ID) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c == '/', c == '%', c < ' ', c == 0x7f, c == '.' && i == 0:
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			b.WriteByte(c)
		}
	}
	switch {
	case b.Len() > 0 && b.Len() <= 200:
		return b.String()
	case uuid != "":
		return uuid
	}
	return string(id)
}

// open opens the folder, creating what is missing.
func (d *folder) open(f *files, now time.Time, gid int) (err error) {
	if err := f.root.Mkdir(d.name, 0o755); err == nil {
		m, err := f.root.OpenFile(d.name+"/"+markFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			err = m.Close()
		}
		if err != nil {
			return errors.Join(err, f.root.Remove(d.name)) // without the mark its owner is unknown
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	delete(f.leftover, d.name)
	if d.root, err = openDirectory(f.root, d.name, gid); err != nil {
		return err
	}
	if err := d.root.Mkdir(energyshare.Zone, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if d.zone, err = openDirectory(d.root.Root, energyshare.Zone, gid); err != nil {
		return err
	}
	d.opened = now
	return errors.Join(d.zone.replace(base(energyshare.ZoneName), []byte(zoneName)),
		d.zone.replace(base(energyshare.ZoneRange), strconv.AppendInt(nil, energyshare.MaxEnergy, 10)))
}

// write writes the files that change with each tick.
func (d *folder) write(f *files, now time.Time, e *entry) error {
	if d.root == nil {
		if err := d.open(f, now, e.gid); err != nil {
			d.close()
			return err
		}
	}
	var buf [24]byte
	if err := d.zone.replace(base(energyshare.ZoneEnergy), append(strconv.AppendInt(buf[:0], e.energy, 10), '\n')); err != nil {
		return err
	}
	return d.root.replace(energyshare.File, e.line)
}

// base returns the name of a file in the zone.
func base(path string) string { return strings.TrimPrefix(path, energyshare.Zone+"/") }

// close closes the folder's descriptors.
func (d *folder) close() {
	d.zone.close()
	d.root.close()
	d.root, d.zone = nil, nil
}

// remove removes the files of a folder, and the folder if it was created here and is otherwise
// empty.
func (f *files) remove(d *folder) {
	d.close()
	r, err := f.root.OpenRoot(d.name)
	if err != nil {
		return // already gone
	}
	defer func() { _ = r.Close() }()
	for _, name := range []string{energyshare.File, energyshare.ZoneEnergy, energyshare.ZoneName, energyshare.ZoneRange} {
		_ = r.Remove(name) // a file that stays does no harm: it no longer changes
	}
	if _, err := r.Lstat(markFile); err != nil {
		return
	}
	_ = r.Remove(energyshare.Zone)
	_ = r.Remove(markFile)
	_ = f.root.Remove(d.name) // only if it is empty
}

// removeLeftover removes folders of an earlier run whose virtual machines are gone.
func (f *files) removeLeftover() {
	for name := range f.leftover {
		f.remove(&folder{name: name})
	}
	f.leftover = nil
}

// close closes everything. Files stay: virtual machines see that they stop changing, and continue
// when the next agent writes them.
func (f *files) close() {
	for _, d := range f.folders {
		d.close()
	}
	if f.root != nil {
		_ = f.root.Close()
		_ = f.lock.Close() // releases the lock
	}
	f.root, f.lock = nil, nil
}
