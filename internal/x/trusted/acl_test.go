package trusted

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/model/fault"
)

// An access control list may let others write although the mode names only a trusted group.
func TestAccessControlList(t *testing.T) {
	u, dir, file := fixture(t, os.Geteuid())
	// Version 2, then tag, permissions and id of each entry: acl(5),
	// include/uapi/linux/posix_acl_xattr.h.
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	const none = 1<<32 - 1
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, none}, {0x02, 7, 65534}, {0x04, 5, none}, {0x10, 7, none}, {0x20, 5, none}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	u.groups[uint32(os.Getegid())] = ""
	err := unix.Setxattr(dir, "system.posix_acl_access", acl, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("the file system has no access control lists")
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.file(file); !errors.Is(err, fault.ErrDenied) || fault.Hint(err) == "" {
		t.Errorf("%v, hint %q; want it denied", err, fault.Hint(err))
	}
	if err := os.Chmod(dir, 0o755); err != nil { // this removes write permission from the list's mask
		t.Fatal(err)
	}
	if _, err := u.file(file); err != nil {
		t.Error(err)
	}
}

// A symbolic link in a tree is refused, since its target is not walked.
func TestTreeLink(t *testing.T) {
	u, dir, file := fixture(t, os.Geteuid())
	cmd := filepath.Join(dir, "cmd")
	if err := errors.Join(os.Mkdir(cmd, 0o755), os.WriteFile(filepath.Join(cmd, "a.go"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.tree(dir, "cmd", "nosuch"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(file), filepath.Join(cmd, "more")); err != nil {
		t.Fatal(err)
	}
	if _, err := u.tree(dir, "cmd"); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("%v; want it denied", err)
	}
}
