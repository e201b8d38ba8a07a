package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// Exchange puts the file temp in the place of the file name, atomically for readers but not
// durably, and removes the old one. Both are in the directory with the descriptor dir, or are
// paths if it is unix.AT_FDCWD. ext4 writes a file at once that is renamed over another one,
// which takes far longer than to exchange the two and to remove the old one.
func Exchange(dir int, temp, name string) error {
	if unix.Renameat2(dir, temp, dir, name, unix.RENAME_EXCHANGE) == nil {
		if err := unix.Unlinkat(dir, temp, 0); err != nil {
			return &os.PathError{Op: "remove", Path: temp, Err: err}
		}
		return nil
	}
	// There was no file, or the file system lacks RENAME_EXCHANGE.
	if err := unix.Renameat(dir, temp, dir, name); err != nil {
		return &os.LinkError{Op: "rename", Old: temp, New: name, Err: err}
	}
	return nil
}
