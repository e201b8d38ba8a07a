package hostfs

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// pathError is an error with its path and fault kind.
type pathError struct {
	path string
	kind error // nil where no kind fits
	err  error
}

func (e *pathError) Error() string { return e.path + ": " + e.err.Error() }

func (e *pathError) Unwrap() []error {
	if e.kind == nil {
		return []error{e.err}
	}
	return []error{e.kind, e.err}
}

// wrap adds the path and the fault kind to err.
func wrap(path string, err error) error {
	if err == nil {
		return nil
	}
	// The path is added once only.
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &pathError{path, kind(err), err}
}

func kind(err error) error {
	errno, ok := errors.AsType[unix.Errno](err)
	switch {
	case !ok && errors.Is(err, fs.ErrNotExist):
		return fault.ErrNotFound
	case !ok:
		return nil
	}
	switch errno {
	case unix.ENOENT, unix.ENODEV, unix.ENOTDIR, unix.ESRCH, unix.ENXIO:
		return fault.ErrNotFound
	case unix.EACCES, unix.EPERM, unix.EROFS:
		return fault.ErrDenied
	case unix.EOPNOTSUPP, unix.ENOSYS:
		return fault.ErrUnsupported
	case unix.EEXIST, unix.EBUSY, unix.ENOTEMPTY:
		return fault.ErrConflict
	case unix.EAGAIN, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EINTR:
		return fault.ErrUnavailable
	}
	return nil
}
