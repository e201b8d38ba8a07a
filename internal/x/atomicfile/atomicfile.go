// Package atomicfile replaces, copies and moves files so that a crash leaves either the old
// file or the new one, complete.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// tempPrefix begins the names of the temporary files of [Replace].
const tempPrefix = ".new-"

// Replace writes b to the file at path, atomically and durably: after a crash the file has
// either its old content or b, and it has b once Replace has returned. The file gets mode
// 0600. Replace first writes a file .new-* in the same directory; a killed process may
// leave it behind.
func Replace(path string, b []byte) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, tempPrefix+"*") // mode 0600
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
