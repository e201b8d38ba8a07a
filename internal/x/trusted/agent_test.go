package trusted

import (
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/testkit/hosttest"
)

// A directory is given to its owner if root alone could put it there.
func TestIsGivenTo(t *testing.T) {
	hosttest.Need(t, "root")
	const user = 4711
	top := t.TempDir()
	for _, d := range []struct {
		path string
		uid  int
		mode os.FileMode
	}{
		{"", 0, 0o755}, {"run", 0, 0o755}, {"run/mete", user, 0o755}, {"run/root", 0, 0o755},
		{"tmp", 0, 0o777 | os.ModeSticky}, {"tmp/mete", user, 0o755},
		{"shared", 0, 0o775}, {"shared/mete", user, 0o755},
		{"home", user, 0o755}, {"home/mete", user, 0o755},
	} {
		path := filepath.Join(top, d.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, d.uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, d.mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"var": "run", "link": "home/mete"} {
		if err := os.Symlink(target, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(top, "run/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(top, "run/file"), user, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dir  string
		uid  uint32
		want bool
	}{
		{"run/mete", user, true}, {"var/mete", user, true}, {"home", user, true}, {"run/root", 0, true},
		{"run/mete", user + 1, false}, {"run/mete", 0, false}, {"run/root", user, false}, {"run/file", user, false},
		{"tmp/mete", user, false}, {"shared/mete", user, false}, {"home/mete", user, false}, {"link", user, false}, {"nosuch", user, false},
	} {
		if got := isGivenTo(top, c.dir, c.uid); got != c.want {
			t.Errorf("%s to user %d: %t, want %t", c.dir, c.uid, got, c.want)
		}
	}
}
