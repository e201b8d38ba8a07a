// Package atomicfile puts files in their place so that a crash leaves either the
// old one or the new one, whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// tempPrefix is what a file is called first that takes another one's place.
const tempPrefix = ".new-"

// Replace puts a file in place of the one before, which need not be there: whole
// or not at all, and so that it stays when the power fails after Replace has
// returned. Its owner alone may read and write it. What it writes before is called
// .new-* in the same directory; of a process that is killed that may be left.
func Replace(path string, b []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*") // it is made with 0600
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}
