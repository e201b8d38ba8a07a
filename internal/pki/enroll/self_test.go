package enroll_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"mete.dev/mete/internal/pki/enroll"
)

// WriteCA makes the certificate world-readable, also over a file that a killed process
// left without its mode or with other contents.
func TestWriteCA(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, err := enroll.WriteCA(dir, "a certificate")
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func() error{
		"nothing":      func() error { return nil },
		"its mode":     func() error { return os.Chmod(path, 0o600) },
		"its contents": func() error { return os.WriteFile(path, []byte("half"), 0o600) },
		"all of it":    func() error { return os.Remove(path) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		again, err := enroll.WriteCA(dir, "a certificate")
		if err != nil || again != path {
			t.Fatalf("after %s: %s, %v, want %s", name, again, err, path)
		}
		b, err := os.ReadFile(path)
		if info, also := os.Stat(path); err != nil || also != nil || string(b) != "a certificate" || info.Mode().Perm() != 0o644 {
			t.Errorf("after %s: %q, %v, %v, %v", name, b, info, err, also)
		}
	}
	if other, err := enroll.WriteCA(dir, "another"); err != nil || other == path {
		t.Errorf("other authority: %s, %v", other, err)
	}
	// Running jobs have the path in their environment.
	if name := filepath.Base(path); !regexp.MustCompile("^ca-[0-9a-f]{16}[.]pem$").MatchString(name) {
		t.Errorf("the file is %s", name)
	}
	if path, err := enroll.WriteCA(filepath.Join(dir, "none"), "a certificate"); !errors.Is(err, os.ErrNotExist) || path != "" {
		t.Errorf("without a directory: %s, %v", path, err)
	}
}
