package remotewrite_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"mete.dev/mete/internal/prom/remotewrite"
	"mete.dev/mete/internal/testkit"
)

// lockedBuffer is a buffer that a logger may write to while a test reads it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Neither the log nor the status shows more of a receiver's URL than its host, whether the
// receiver answers or not, and the URL may be in a file.
func TestURLIsHidden(t *testing.T) {
	t.Parallel()
	from := open(t)
	var once sync.Once
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first := false
		once.Do(func() { first = true })
		if first { // sent again, with an error that names the URL
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				err = c.Close()
			}
			if err != nil {
				t.Error(err)
			}
			return
		}
		http.Error(w, "nothing at "+r.RequestURI, http.StatusNotFound)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(s.URL+"/push/PATHSECRET?apikey=QUERYSECRET\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	w, err := remotewrite.NewWriter([]remotewrite.Receiver{{URL: "@" + file, Version: "1.0"}, {URL: s.URL + "/other/PATHSECRET2", Version: "2.0"}}, from,
		slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	testkit.Eventually(t, "both receivers refuse samples, and one has to be sent again", func() bool {
		append1(t, from, "app", 1)
		st := w.Status()
		return st[0].Failed > 0 && st[1].Failed > 0 && strings.Contains(log.String(), "retrying")
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	shown := log.String() + fmt.Sprint(w.Status())
	if strings.Contains(shown, "SECRET") {
		t.Errorf("a secret is shown: %s", shown)
	}
	host := strings.TrimPrefix(s.URL, "http://")
	if st := w.Status(); st[0].Name != host || st[1].Name != host+" (2)" {
		t.Errorf("receivers are %q and %q", st[0].Name, st[1].Name)
	}
	if !strings.Contains(shown, "url="+host) {
		t.Errorf("the log does not name the host: %s", shown)
	}
}
