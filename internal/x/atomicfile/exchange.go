package atomicfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// Overwrite replaces the file at path by one with b and mode 0644, atomically for readers but not
// durably. It first writes a file with the suffix .new, which a killed process may leave behind.
func Overwrite(path string, b []byte) error {
	temp := path + ".new"
	if err := os.WriteFile(temp, b, 0o644); err != nil {
		return err
	}
	return Exchange(unix.AT_FDCWD, temp, path)
}

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
