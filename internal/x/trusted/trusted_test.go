package trusted

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// fixture makes a directory with a file in it, and a user database: me with a private
// group, ann with another, and a group many of both.
func fixture(t *testing.T, me int) (u user, dir, file string) {
	t.Helper()
	u = user{me, map[uint32]string{}, t.TempDir()}
	dir = filepath.Join(t.TempDir(), "sub")
	file = filepath.Join(dir, "program")
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\nme:x:4711:4711::/:/bin/sh\nann:x:4712:4712::/:/bin/sh\nbob:x:4713:100::/:/bin/sh\n",
		"group":  "root:x:0:\nstaff:x:50:\nusers:x:100:\nme:x:4711:\nann:x:4712:\nmany:x:4800:me,ann\nmine:x:4801:me,root\n",
	} {
		if err := os.WriteFile(filepath.Join(u.etc, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o755)); err != nil {
		t.Fatal(err)
	}
	return u, dir, file
}

// File refuses what others can write; the error has the path, who can write, and what to
// do.
func TestModes(t *testing.T) {
	u, dir, file := fixture(t, os.Geteuid())
	if real, err := u.file(file); err != nil || filepath.Base(real) != "program" {
		t.Fatalf("%s, %v", real, err)
	}
	for _, c := range []struct {
		path string
		mode os.FileMode
		bad  string
	}{
		{file, 0o757, "everyone"}, {dir, 0o757, "everyone"}, {dir, 0o757 | os.ModeSticky, ""}, {file, 0o757 | os.ModeSticky, "everyone"},
	} {
		if err := os.Chmod(c.path, c.mode); err != nil {
			t.Fatal(err)
		}
		_, err := u.file(file)
		if (err != nil) != (c.bad != "") || err != nil && (!errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), c.path+" can be written by "+c.bad) || !strings.Contains(fault.Hint(err), "chmod o-w "+c.path)) {
			t.Errorf("%s with mode %v: %v, hint %q", c.path, c.mode, err, fault.Hint(err))
		}
		if err := os.Chmod(c.path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := u.file(filepath.Join(dir, "nosuch")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// A link is judged by its target.
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(file, link), os.Chmod(dir, 0o757)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.file(link); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a link into a directory that everyone may write: %v", err)
	}
}

// Files and groups of other users are refused; groups without other members are not.
func TestOwners(t *testing.T) {
	hosttest.Need(t, "root")
	const me, ann = 4711, 4712
	for _, c := range []struct {
		what     string
		as       int // the user that runs the program
		uid, gid int // of the directory
		want     string
	}{
		{"owned by root", me, 0, 0, ""},
		{"own, private group", me, me, me, ""},
		{"own, group of root and this user", me, me, 4801, ""},
		{"own, group with another member", me, me, 4800, "group 4800, of which ann is a member"},
		{"own, primary group of another user", me, me, 100, "group 100, of which bob is a member"},
		{"own, unlisted group", me, me, 9999, "group 9999, whose members are not known"},
		{"owned by another user", me, ann, 0, "user ann"},
		{"owned by an unknown user", me, 9999, 0, "user 9999"},
		{"owned by root, empty group, as Debian's /usr/local", 0, 0, 50, ""},
		{"owned by root, group of a user", 0, 0, 4711, "group 4711, of which me is a member"},
		{"owned by a user, run by root", 0, me, 0, "user me"},
	} {
		u, dir, file := fixture(t, c.as)
		if err := errors.Join(os.Chown(dir, c.uid, c.gid), os.Chmod(dir, 0o775)); err != nil {
			t.Fatal(err)
		}
		_, err := u.file(file)
		if (err != nil) != (c.want != "") || err != nil && (!errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) || !strings.Contains(fault.Hint(err), dir)) {
			t.Errorf("%s: %v (hint %q), want %q", c.what, err, fault.Hint(err), c.want)
		}
		// Tree finds it deeper too, and checks only the given entries.
		tree := filepath.Dir(dir)
		_, deep := u.tree(tree, "sub", "nosuch")
		if (deep != nil) != (c.want != "") {
			t.Errorf("%s, in a tree: %v, want %q", c.what, deep, c.want)
		}
		if _, err := u.tree(tree, "nosuch"); err != nil {
			t.Errorf("%s, other entry: %v", c.what, err)
		}
	}
	// A directory above owned by another user, and a file in a sticky directory.
	u, dir, file := fixture(t, 0)
	if err := errors.Join(os.Chown(file, ann, ann), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.file(file); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("another user's file in a sticky directory: %v", err)
	}
	if err := errors.Join(os.Chown(file, 0, 0), os.Chown(dir, ann, ann), os.Chmod(dir, 0o777|os.ModeSticky)); err != nil {
		t.Fatal(err)
	}
	if _, err := u.file(file); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("another user's sticky directory: %v", err)
	}
}
