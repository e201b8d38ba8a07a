package capture_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/testkit/hosttest"
)

// run captures a captured machine to a file with the command.
func run(t *testing.T, file string) error {
	t.Helper()
	c := capture.Command()
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetOut(&bytes.Buffer{})
	c.SetErr(&bytes.Buffer{})
	c.SetArgs([]string{"--root", hosttest.Open(t, "v1-kubelet").Path("/"), file})
	return c.ExecuteContext(t.Context())
}

// TestUnwritable checks that errors name the user's file, and that nothing is left behind.
func TestUnwritable(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ file, says string }{
		{dir + "/nosuch/x", "no such file or directory"},
		{dir, "is a directory"},
		{"/dev/full", "no space left on device"},
	} {
		if err := run(t, c.file); err == nil || err.Error() != "write "+c.file+": "+c.says {
			t.Errorf("capture %s: %v, want %q", c.file, err, c.says)
		}
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) > 0 {
		t.Errorf("left: %v, %v", es, err)
	}
}

// TestWriteFile checks that a capture replaces a file but never a device.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x")
	if err := os.WriteFile(file, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := run(t, file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !strings.Contains(string(b), "\n-- proc/stat --\n") {
		t.Errorf("%v: %s", err, b)
	}
	if es, err := os.ReadDir(dir); err != nil || len(es) != 1 {
		t.Errorf("left: %v, %v", es, err)
	}
	null := filepath.Join(dir, "null")
	if err := os.Symlink(os.DevNull, null); err != nil {
		t.Fatal(err)
	}
	if err := run(t, null); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(null); err != nil || st.Mode().Type() != os.ModeSymlink {
		t.Errorf("%s was replaced: %v, %v", null, st.Mode(), err)
	}
}
