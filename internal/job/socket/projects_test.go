package socket_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
)

// TestProjects checks the file of projects and who may use which.
func TestProjects(t *testing.T) {
	file := filepath.Join(t.TempDir(), "projects")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, mode)); err != nil {
			t.Fatal(err)
		}
	}
	if p, err := socket.ReadProjects(file); err != nil || len(p) != 0 {
		t.Errorf("without a file: %v, %v", p, err)
	}
	write("# users of this machine\n\n1234 web\nroot\tops\n", 0o644)
	p, err := socket.ReadProjects(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uid          uint32
		wanted, want string
		err          error
	}{
		{1234, "", "web", nil},
		{1234, "web", "web", nil},
		{1234, "ops", "", fault.ErrDenied},
		{1235, "", "", nil},
		{1235, "web", "", fault.ErrDenied},
		{0, "", "ops", nil},
		{0, "web", "web", nil},
	} {
		if got, err := p.Of(c.uid, c.wanted); got != c.want || !errors.Is(err, c.err) {
			t.Errorf("user %d who asks for %q: %q, %v; want %q, %v", c.uid, c.wanted, got, err, c.want, c.err)
		}
	}
	for text, want := range map[string]string{
		"1234 web\n1235\n":        ":2: 1 words",
		"1234 web shop\n":         ":1: 3 words",
		"no-such-user-here web\n": ":1: there is no user",
		"1234 web\n1234 shop\n":   ":2: user \"1234\" is in another line",
		"1234 \x1b[2J\n":          ":1: ",
	} {
		write(text, 0o644)
		if _, err := socket.ReadProjects(file); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), file+want) || fault.Hint(err) == "" {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for _, mode := range []os.FileMode{0o664, 0o646} {
		write("1234 web\n", mode)
		if _, err := socket.ReadProjects(file); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
}
