package relay

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// A directory is one in which files are put.
type directory struct {
	*os.Root
	dir *os.File // the same, for what a Root cannot do
}

func openDirectory(in *os.Root, name string) (*directory, error) {
	r, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	dir, err := r.Open(".")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &directory{r, dir}, nil
}

func (d *directory) close() {
	if d != nil {
		_ = d.dir.Close() // nothing was written through either
		_ = d.Close()
	}
}

// tempSuffix ends the name of a file that is yet to be put in its place.
const tempSuffix = ".new"

// replace puts a file in place of another, whole or not at all. It need not
// outlive the machine, so nothing is synced.
//
// The two change places and the old one is removed then, although a rename would do
// both: ext4 writes to the disk at once what is renamed over a file, for those who
// forgot to sync it, which takes twenty times as long as all else here.
func (d *directory) replace(name string, b []byte) error {
	err := d.swapIn(name, b)
	if err != nil {
		_ = d.Remove(name + tempSuffix) // as far as it can be
	}
	return err
}

func (d *directory) swapIn(name string, b []byte) error {
	const flags = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	w, err := d.OpenFile(name+tempSuffix, flags, 0o644)
	if errors.Is(err, fs.ErrExist) { // left by one that was killed
		if err := d.Remove(name + tempSuffix); err != nil {
			return err
		}
		w, err = d.OpenFile(name+tempSuffix, flags, 0o644)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	fd := int(d.dir.Fd())
	if unix.Renameat2(fd, name+tempSuffix, fd, name, unix.RENAME_EXCHANGE) == nil {
		return d.Remove(name + tempSuffix)
	}
	// There was none, or this file system cannot do that.
	return d.Rename(name+tempSuffix, name)
}
