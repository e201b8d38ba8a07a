package relay

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// A place is a directory in which files are put.
type place struct {
	*os.Root
	dir *os.File // the same, for what a Root cannot do
}

func openPlace(in *os.Root, name string) (*place, error) {
	r, err := in.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	dir, err := r.Open(".")
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &place{r, dir}, nil
}

func (p *place) close() {
	if p != nil {
		_ = p.dir.Close() // nothing was written through either
		_ = p.Close()
	}
}

// fresh ends the name of a file that is yet to be put in its place.
const fresh = ".new"

// replace puts a file in place of another, whole or not at all. It need not
// outlive the machine, so nothing is synced.
//
// The two change places and the old one is removed then, although a rename would do
// both: ext4 writes to the disk at once what is renamed over a file, for those who
// forgot to sync it, which takes twenty times as long as all else here.
func (p *place) replace(name string, b []byte) error {
	err := p.put(name, b)
	if err != nil {
		_ = p.Remove(name + fresh) // as far as it can be
	}
	return err
}

func (p *place) put(name string, b []byte) error {
	const flags = os.O_CREATE | os.O_EXCL | os.O_WRONLY
	w, err := p.OpenFile(name+fresh, flags, 0o644)
	if errors.Is(err, fs.ErrExist) { // left by one that was killed
		if err := p.Remove(name + fresh); err != nil {
			return err
		}
		w, err = p.OpenFile(name+fresh, flags, 0o644)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	fd := int(p.dir.Fd())
	if unix.Renameat2(fd, name+fresh, fd, name, unix.RENAME_EXCHANGE) == nil {
		return p.Remove(name + fresh)
	}
	// There was none, or this file system cannot do that.
	return p.Rename(name+fresh, name)
}
