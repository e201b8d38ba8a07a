package publish

import (
	"errors"
	"io/fs"
	"os"

	"mete.dev/mete/internal/x/atomicfile"
)

// A directory is a directory for files that replace updates.
type directory struct {
	*os.Root
	dir *os.File // the same, for renameat2
	gid int      // group that may read the files
}

// fileMode is that of files with shares. A reader of a share can claim to be the guest.
const fileMode = 0o640

func openDirectory(in *os.Root, name string, gid int) (*directory, error) {
	r, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	dir, err := r.Open(".")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &directory{r, dir, gid}, nil
}

func (d *directory) close() {
	if d != nil {
		_ = d.dir.Close() // nothing was written through either
		_ = d.Close()
	}
}

// tempSuffix ends the name of a file before it is renamed.
const tempSuffix = ".new"

// replace replaces a file atomically. The file need not survive a crash of the machine, so nothing
// is synced. Renaming over the old one would take twenty times as long as everything else here, see
// [atomicfile.Exchange].
func (d *directory) replace(name string, b []byte) error {
	err := d.swapIn(name, b)
	if err != nil {
		_ = d.Remove(name + tempSuffix) // best effort
	}
	return err
}

func (d *directory) swapIn(name string, b []byte) error {
	const flags = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	w, err := d.OpenFile(name+tempSuffix, flags, fileMode)
	if errors.Is(err, fs.ErrExist) { // left by a killed process
		if err := d.Remove(name + tempSuffix); err != nil {
			return err
		}
		w, err = d.OpenFile(name+tempSuffix, flags, fileMode)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err == nil && d.gid != os.Getegid() {
		err = w.Chown(-1, d.gid)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	return atomicfile.Exchange(int(d.dir.Fd()), name+tempSuffix, name)
}
