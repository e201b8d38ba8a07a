// Package trusted checks that only root and this user can have written a file, before it is
// run or built.
package trusted

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// A user trusts itself and root.
type user struct {
	id     int
	groups map[uint32]string // by group id: why the group is not trusted, "" if it is
	etc    string            // directory of passwd and group
}

func currentUser() user { return user{os.Geteuid(), map[uint32]string{}, "/etc"} }

// File returns the path of a file or directory without symbolic links. It refuses, with
// fault.ErrDenied, a path that users other than root and this one can write or replace, by
// the owner and mode of the file and of all directories above it. A directory above it may
// be writable by others if it has the sticky bit, as /tmp has, because only the owner of an
// entry can rename it.
//
// A group may have write permission if /etc/group and /etc/passwd list no members but root
// and this user: for example a user's private group, or the group staff of Debian's
// /usr/local while it is empty.
func File(path string) (string, error) { return currentUser().file(path) }

// Tree is File for a directory and everything in the given entries, which must not contain
// symbolic links. It skips entries that do not exist.
func Tree(dir string, entries ...string) (string, error) { return currentUser().tree(dir, entries...) }

func (u user) file(path string) (string, error) {
	real, err := filepath.EvalSymlinks(path)
	if err == nil {
		real, err = filepath.Abs(real)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(real)
	if err == nil {
		err = u.check(real, info, false)
	}
	for dir := real; err == nil && dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		if info, err = os.Lstat(dir); err == nil {
			err = u.check(dir, info, true)
		}
	}
	return real, err
}

func (u user) tree(dir string, entries ...string) (string, error) {
	real, err := u.file(dir)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		top := filepath.Join(real, e)
		if _, err := os.Lstat(top); os.IsNotExist(err) {
			continue
		}
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.Type() == fs.ModeSymlink {
				// WalkDir does not follow the link
				return fault.WithHint(fmt.Errorf("%s is a symbolic link, whose target is not checked: %w", path, fault.ErrDenied), "replace the link by its target")
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			return u.check(path, info, false)
		})
		if err != nil {
			return "", err
		}
	}
	return real, nil
}

// check returns why a file or directory is not trusted. parent says that path is a
// directory above the one of interest, where only changes of existing entries matter.
func (u user) check(path string, info fs.FileInfo, parent bool) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: its owner is not known: %w", path, fault.ErrUnsupported)
	}
	if st.Uid != 0 && int(st.Uid) != u.id {
		return fault.WithHint(fmt.Errorf("%s belongs to user %s, who could have replaced it: %w", path, u.name(st.Uid), fault.ErrDenied),
			fmt.Sprintf("if user %s should run it, change its owner: chown %[2]d %[3]s", u.name(uint32(u.id)), u.id, path))
	}
	mode := info.Mode()
	if parent && mode&fs.ModeSticky != 0 {
		return nil
	}
	if mode.Perm()&0o002 != 0 {
		return fault.WithHint(fmt.Errorf("%s can be written by everyone: %w", path, fault.ErrDenied), "check who has changed it, then: chmod o-w "+path)
	}
	if mode.Perm()&0o020 == 0 {
		return nil
	}
	// With an access control list, the group bits are the mask of all its entries (acl(5)).
	switch _, err := unix.Lgetxattr(path, "system.posix_acl_access", nil); err {
	case unix.ENODATA, unix.EOPNOTSUPP:
	case nil:
		return fault.WithHint(fmt.Errorf("%s has an access control list that may let others write: %w", path, fault.ErrDenied), "check who has changed it, then: setfacl -b "+path)
	default:
		return fmt.Errorf("%s: access control list: %w", path, err)
	}
	if why := u.group(st.Gid); why != "" {
		return fault.WithHint(fmt.Errorf("%s can be written by group %d, %s: %w", path, st.Gid, why, fault.ErrDenied), "check who has changed it, then: chmod g-w "+path)
	}
	return nil
}

// group returns why the members of a group are not trusted, "" if they are.
func (u user) group(gid uint32) (why string) {
	if why, known := u.groups[gid]; known {
		return why
	}
	defer func() { u.groups[gid] = why }()
	id := strconv.FormatUint(uint64(gid), 10)
	own := strconv.Itoa(u.id)
	found := gid == 0 // group 0 may be missing from the file
	var members []string
	for f := range u.lines("group") { // name:password:gid:members
		if len(f) == 4 && f[2] == id {
			found = true
			members = append(members, strings.FieldsFunc(f[3], func(r rune) bool { return r == ',' })...)
		}
	}
	for f := range u.lines("passwd") { // name:password:uid:gid:...
		if len(f) < 4 {
			continue
		}
		if f[2] == "0" || f[2] == own {
			members = slices.DeleteFunc(members, func(m string) bool { return m == f[0] })
		} else if f[3] == id {
			return "of which " + f[0] + " is a member"
		}
	}
	switch {
	case !found:
		return "whose members are not known"
	case len(members) > 0:
		return "of which " + members[0] + " is a member"
	}
	return ""
}

// lines yields the fields of each line of a file in /etc.
func (u user) lines(name string) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		b, err := os.ReadFile(filepath.Join(u.etc, name))
		if err != nil {
			return // without the file no user or group is known
		}
		for line := range strings.Lines(string(b)) {
			if !yield(strings.Split(strings.TrimSuffix(line, "\n"), ":")) {
				return
			}
		}
	}
}

// name returns the name of a user, or the number if it has no name.
func (u user) name(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	for f := range u.lines("passwd") {
		if len(f) > 2 && f[2] == id {
			return f[0]
		}
	}
	return id
}
