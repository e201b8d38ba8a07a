package hostfs

import (
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// groupWritable are the permissions with which users other than the owner create groups in a
// directory.
const groupWritable = 0o022

// overflowUser stands for users outside the user namespace, see user_namespaces(7).
const overflowUser = 65534

// Maker returns the user who can have named the group at p, below the root of a hierarchy mounted
// at mount: 0 if root alone can create groups there, since all directories above it are root's;
// otherwise the owner of the group. So the name of a group that root delegated is root's, and a name
// below it is not.
//
// The user of this process counts as root, since that user can change what its meter books. So does
// a user whom this user namespace does not show. The error is fault.ErrNotFound if the group of
// another user, or a directory above it, is gone.
func (h *FS) Maker(mount, p string) (uid uint32, err error) {
	above := mount
	for rest := strings.Trim(path.Dir(path.Clean(p)), "/"); ; {
		uid, mode, err := h.owner(above)
		if err != nil {
			return 0, err
		}
		if uid != 0 || mode&groupWritable != 0 {
			uid, _, err = h.owner(path.Join(mount, p))
			return uid, err
		}
		if rest == "" {
			return 0, nil
		}
		var element string
		element, rest, _ = strings.Cut(rest, "/")
		above = path.Join(above, element)
	}
}

// owner returns owner and permissions of a directory; 0 for users who count as root.
func (h *FS) owner(dir string) (uid, mode uint32, err error) {
	var st unix.Stat_t
	if err := unix.Stat(h.Path(dir), &st); err != nil {
		return 0, 0, wrap(dir, err)
	}
	if int(st.Uid) == os.Geteuid() || st.Uid == overflowUser && !hasAllUsers() {
		st.Uid = 0
	}
	return st.Uid, st.Mode, nil
}

// hasAllUsers reports whether the user namespace of this process maps all users.
var hasAllUsers = sync.OnceValue(func() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err != nil || slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
})
