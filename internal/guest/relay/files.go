package relay

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

	"mete.dev/mete/internal/guest/share"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/workload"
)

// files puts shares into a folder for each virtual machine.
//
// A virtual machine may be let write into its own folder, so nothing in there is
// trusted: no link leads out of it, and no file that is there is opened.
type files struct {
	dir     string
	keepFor time.Duration // keepFolderFor
	log     *slog.Logger

	root         *os.Root // of dir; nil while that cannot be had
	lock         *os.File // dir, locked
	triedAt      time.Time
	folders      map[workload.ID]*folder
	round        uint64          // counts puts
	leftover     map[string]bool // made by an earlier run, and nobody's yet
	opened       time.Time
	dirOutage    outage
	folderOutage outage // of single virtual machines
}

// An entry is what is to be in the folder of one virtual machine.
type entry struct {
	serial     int64
	id         workload.ID
	name, uuid string
	energy     int64 // uJ
	line       []byte
}

// A folder is that of one virtual machine.
type folder struct {
	name, uuid string
	root, zone *directory
	opened     time.Time
	round      uint64    // of the latest put that it was in
	goneSince  time.Time // since when its virtual machine is; zero while it is there
}

const (
	// markFile is the file that says that the folder it is in was made here.
	markFile = ".mete"
	// zoneName is what powercap calls a package's zone.
	zoneName = "package-0\n"
	// keepFolderFor is for how long a folder waits for its virtual machine to be seen
	// again: longer than it takes to find those that are there. One that is shared
	// with a virtual machine cannot be removed and made anew, as that one would not
	// see the new one.
	keepFolderFor = time.Minute
)

// update writes the files of the virtual machines that there are, and removes
// those of others.
func (f *files) update(now time.Time, list []entry) {
	if f.root == nil && now.Sub(f.triedAt) < retryEvery && !f.triedAt.IsZero() {
		return
	}
	f.triedAt = now
	err := f.open(now)
	if f.dir == DefaultDir && errors.Is(err, fs.ErrNotExist) {
		f.close()
		return // nobody said that it should be there
	}
	if f.dirOutage.report(f.log, "shares cannot be put into files; it is tried again", "shares are put into files again", err, "path", f.dir); err != nil {
		f.close()
		return
	}
	f.expire(now, list)
	var failed []string
	var first error
	for i := range list {
		e := &list[i]
		if err := f.write(now, e); err != nil {
			failed = append(failed, share.Printable(e.name, 64))
			first = errors.Join(first, err)
		}
	}
	if len(failed) > 0 {
		first = fmt.Errorf("%d of %d virtual machines (%s): %w", len(failed), len(list), strings.Join(failed[:min(len(failed), 5)], ", "), firstError(first))
	}
	f.folderOutage.report(f.log, "shares of some virtual machines cannot be put into files; it is tried again", "shares of all virtual machines are put into files again", first, "path", f.dir)
	if len(f.leftover) > 0 && now.Sub(f.opened) >= f.keepFor {
		f.removeLeftover()
	}
}

// expire removes the folders of virtual machines that are not in the list any more,
// after a while.
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

// firstError is the first of errors that were joined.
func firstError(err error) error {
	for {
		j, ok := err.(interface{ Unwrap() []error })
		if !ok || len(j.Unwrap()) == 0 {
			return err
		}
		err = j.Unwrap()[0]
	}
}

// open opens the directory, for this process alone. One that was removed or
// replaced meanwhile is opened anew.
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
		return fault.WithHint(err, "make the directory, or name another one with -vm-shares")
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fault.WithHint(fmt.Errorf("%s: another process writes there: %w", f.dir, fault.ErrConflict),
			"let one agent alone write there: give the other one another directory, or none, with -vm-shares"), lock.Close())
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

// write puts one share into its files.
func (f *files) write(now time.Time, e *entry) error {
	d := f.folders[e.id]
	if d == nil {
		d = &folder{name: f.folderName(e), uuid: e.uuid}
		f.folders[e.id] = d
	}
	// What is open may have been removed or moved away.
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

// folderName returns the name of the folder for a virtual machine. Who has a name keeps
// it from others while it is there, but for the same machine begun anew.
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

// pathName makes a name of a folder out of that of a domain: what a path cannot
// hold is written as %XX.
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

// open opens the folder, and makes what is not there.
func (d *folder) open(f *files, now time.Time) (err error) {
	if err := f.root.Mkdir(d.name, 0o755); err == nil {
		m, err := f.root.OpenFile(d.name+"/"+markFile, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err == nil {
			err = m.Close()
		}
		if err != nil {
			return errors.Join(err, f.root.Remove(d.name)) // nobody would know whose it is
		}
	} else if !errors.Is(err, fs.ErrExist) {
		return err
	}
	delete(f.leftover, d.name)
	if d.root, err = openDirectory(f.root, d.name); err != nil {
		return err
	}
	if err := d.root.Mkdir(share.Zone, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if d.zone, err = openDirectory(d.root.Root, share.Zone); err != nil {
		return err
	}
	d.opened = now
	return errors.Join(d.zone.replace(base(share.ZoneName), []byte(zoneName)),
		d.zone.replace(base(share.ZoneRange), strconv.AppendInt(nil, share.MaxEnergy, 10)))
}

// write writes what changes with each tick.
func (d *folder) write(f *files, now time.Time, e *entry) error {
	if d.root == nil {
		if err := d.open(f, now); err != nil {
			d.close()
			return err
		}
	}
	var buf [24]byte
	if err := d.zone.replace(base(share.ZoneEnergy), append(strconv.AppendInt(buf[:0], e.energy, 10), '\n')); err != nil {
		return err
	}
	return d.root.replace(share.File, e.line)
}

// base is the name of a file in the zone.
func base(path string) string { return strings.TrimPrefix(path, share.Zone+"/") }

// close lets the folder go.
func (d *folder) close() {
	d.zone.close()
	d.root.close()
	d.root, d.zone = nil, nil
}

// remove removes what was put into a folder, and the folder if it was made here
// and holds nothing else.
func (f *files) remove(d *folder) {
	d.close()
	r, err := f.root.OpenRoot(d.name)
	if err != nil {
		return // it is gone
	}
	defer func() { _ = r.Close() }()
	for _, name := range []string{share.File, share.ZoneEnergy, share.ZoneName, share.ZoneRange} {
		_ = r.Remove(name) // what cannot be removed is no harm: it does not move any more
	}
	if _, err := r.Lstat(markFile); err != nil {
		return
	}
	_ = r.Remove(share.Zone)
	_ = r.Remove(markFile)
	_ = f.root.Remove(d.name) // only if it is empty
}

// removeLeftover removes what an earlier run made for virtual machines that are gone.
func (f *files) removeLeftover() {
	for name := range f.leftover {
		f.remove(&folder{name: name})
	}
	f.leftover = nil
}

// close lets everything go. Files stay: virtual machines see that they do not
// move, and that they go on when the next agent writes them.
func (f *files) close() {
	for _, d := range f.folders {
		d.close()
	}
	if f.root != nil {
		_ = f.root.Close()
		_ = f.lock.Close() // and with it the lock
	}
	f.root, f.lock = nil, nil
}
