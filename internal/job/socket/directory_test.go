package socket_test

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestDirectory checks that the socket is not made where another user can replace it: by a link to a
// file whose permissions would then be changed.
func TestDirectory(t *testing.T) {
	hosttest.Need(t, "root")
	for name, c := range map[string]struct {
		uid  int
		mode os.FileMode
		want error
	}{
		"own":             {0, 0o755, nil},
		"sticky":          {0, 0o777 | os.ModeSticky, nil},
		"of another user": {65534, 0o755, fault.ErrDenied},
		"writable by all": {0, 0o777, fault.ErrDenied},
		"by a group":      {0, 0o775, fault.ErrDenied},
	} {
		d := dir(t)
		if err := errors.Join(os.Chmod(d, c.mode), os.Chown(d, c.uid, c.uid)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(d, "agent.sock")
		s, err := socket.Listen(path, &fakeAgent{}, slog.New(slog.DiscardHandler))
		if !errors.Is(err, c.want) || err != nil && fault.Hint(err) == "" {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o666 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
