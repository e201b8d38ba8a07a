package become

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/fault"
)

// A mete with nothing beside it builds mete-server of its source and becomes it;
// the second time nothing has to be told.
func TestSource(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "mete")
	if out, err := exec.Command("go", "build", "-o", bin, "mete.dev/mete/cmd/mete").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	cache, err := exec.Command("go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(cache))
	for i, told := range []bool{true, false} {
		cmd := exec.Command(bin, "server", "--help")
		cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "GOCACHE="+lines[0], "GOMODCACHE="+lines[1])
		var out, notes bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &notes
		if err := cmd.Run(); err != nil || !strings.Contains(out.String(), "mete server [flags]") {
			t.Fatalf("%v\n%s%s", err, &out, &notes)
		}
		if strings.Contains(notes.String(), "the first time") != told {
			t.Errorf("time %d: it tells %q", i+1, &notes)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "cache/mete/mete-server")); err != nil {
		t.Errorf("it is not kept: %v", err)
	}
}

// What is beside the program goes first; without it and without a source there is
// an error that says what to do.
func TestFind(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var notes bytes.Buffer
	if _, err := find("nosuch", "", &notes); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(fault.Hint(err), "go build -o "+filepath.Dir(self)+"/ ./cmd/mete ./cmd/nosuch") {
		t.Errorf("nothing anywhere: %v, %q", err, fault.Hint(err))
	}
	beside := filepath.Join(filepath.Dir(self), "beside")
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(beside) })
	if path, err := find("beside", "/nowhere", &notes); err != nil || path != beside {
		t.Errorf("beside: %s, %v", path, err)
	}
	if notes.Len() > 0 {
		t.Errorf("told: %s", &notes)
	}
}

// A file that others may change is not built, and a directory that they may replace
// holds no program.
func TestMine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"cmd", "cache/mete"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mod, cmd, cache := filepath.Join(dir, "go.mod"), filepath.Join(dir, "cmd"), filepath.Join(dir, "cache/mete")
	if err := os.WriteFile(mod, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(mine(mod, os.Geteuid()), mine(cmd, os.Geteuid()), reached(cache, os.Geteuid())); err != nil {
		t.Errorf("one's own: %v", err)
	}
	if err := os.Chmod(mod, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := mine(mod, os.Geteuid()); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("one that all may write: %v", err)
	}
	above := filepath.Dir(cache)
	for _, mode := range []os.FileMode{0o777, 0o777 | os.ModeSticky} {
		if err := os.Chmod(above, mode); err != nil {
			t.Fatal(err)
		}
		if err := reached(cache, os.Geteuid()); errors.Is(err, fault.ErrDenied) != (mode == 0o777) {
			t.Errorf("in one with mode %v: %v", mode, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to give files away")
	}
	const nobody = 65534
	if err := errors.Join(os.Chown(cmd, nobody, nobody), os.Chmod(above, 0o755), os.Chown(above, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"one of somebody else": mine(cmd, 0), "one's own in one of somebody else": reached(cache, 0)} {
		if !errors.Is(err, fault.ErrDenied) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := mine(cmd, nobody); err != nil {
		t.Errorf("one of root and oneself: %v", err)
	}
}
