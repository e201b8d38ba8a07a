package netfault_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/netfault"
)

// bench is a server behind a proxy that records its requests.
type bench struct {
	*netfault.Proxy
	mu   sync.Mutex
	got  []string
	size int
}

func open(t *testing.T) *bench {
	t.Helper()
	b := &bench{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		b.mu.Lock()
		b.got = append(b.got, r.URL.Path)
		b.size += len(body)
		b.mu.Unlock()
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	p, err := netfault.OpenLimited(s.Listener.Addr().String(), 1, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	b.Proxy = p
	return b
}

// ask sends n bytes on a new connection and compares the echo.
func (b *bench) ask(ctx context.Context, t *testing.T, path string, n int) error {
	t.Helper()
	body := bytes.Repeat([]byte("0123456789abcdef"), n/16)
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+b.Addr()+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	q.Close = true
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	got, err := io.ReadAll(r.Body)
	if err == nil && !bytes.Equal(got, body) {
		t.Errorf("answer of %d bytes differs from the request of %d", len(got), len(body))
	}
	return err
}

func (b *bench) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

func TestPass(t *testing.T) {
	b := open(t)
	for _, w := range []netfault.Conditions{{}, {Delay: time.Millisecond, Hold: time.Millisecond}} {
		b.Set(w)
		if err := b.ask(t.Context(), t, "/a", 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.Stats(); s.Conns != 2 || s.Lost != 0 || s.Repeated != 0 || b.size != 2<<20 {
		t.Errorf("%+v, %d bytes", s, b.size)
	}
}

func TestRate(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Rate: 1 << 20})
	start := time.Now()
	if err := b.ask(t.Context(), t, "/a", 100<<10); err != nil {
		t.Fatal(err)
	}
	// 100 ms for the request, and some more for the answer.
	if took := time.Since(start); took < 95*time.Millisecond {
		t.Errorf("100 KiB at 1 MiB a second took %v", took)
	}
}

func TestDown(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Down: true})
	if err := b.ask(t.Context(), t, "/a", 16); err == nil || len(b.seen()) != 0 {
		t.Errorf("request passed: %v", err)
	}
	b.Set(netfault.Conditions{Silent: true})
	failed := make(chan error, 1)
	go func() { failed <- b.ask(t.Context(), t, "/b", 16) }()
	testkit.Eventually(t, "the second connection", func() bool { return b.Stats().Conns == 2 })
	b.Set(netfault.Conditions{Down: true})
	if err := <-failed; err == nil {
		t.Error("Down did not reset an existing connection")
	}
}

func TestSilent(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Silent: true})
	ask := func(ctx context.Context, path string, conns int64) <-chan error {
		done := make(chan error, 1)
		go func() { done <- b.ask(ctx, t, path, 16) }()
		testkit.Eventually(t, path+" is connected", func() bool { return b.Stats().Conns == conns })
		return done
	}
	ctx, cancel := context.WithCancel(t.Context())
	canceled := ask(ctx, "/a", 1)
	cancel()
	if err := <-canceled; !errors.Is(err, context.Canceled) {
		t.Errorf("canceled request: %v", err)
	}
	done := ask(t.Context(), "/b", 2)
	if len(b.seen()) != 0 {
		t.Error("request passed")
	}
	b.Set(netfault.Conditions{})
	if err := <-done; err != nil {
		t.Errorf("after the silence: %v", err)
	}
}

func TestLose(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Lose: 1})
	if err := b.ask(t.Context(), t, "/a", 16); err == nil || len(b.seen()) != 1 || b.Stats().Lost != 1 {
		t.Errorf("%v after %q, %+v", err, b.seen(), b.Stats())
	}
}

func TestCut(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Cut: 1})
	if err := b.ask(t.Context(), t, "/a", 1<<20); err == nil || len(b.seen()) != 0 {
		t.Errorf("%v after %q", err, b.seen())
	}
}

func TestRepeat(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Repeat: 1})
	if err := b.ask(t.Context(), t, "/a", 1<<16); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the repeated request", func() bool { return slices.Equal(b.seen(), []string{"/a", "/a"}) })
}

// TestHold checks that a connection overtakes one that is held.
func TestHold(t *testing.T) {
	b := open(t)
	b.Set(netfault.Conditions{Hold: 24 * time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	held := make(chan error, 1)
	go func() { held <- b.ask(ctx, t, "/held", 16) }()
	testkit.Eventually(t, "the held connection", func() bool { return b.Stats().Conns == 1 })
	b.Set(netfault.Conditions{})
	if err := b.ask(t.Context(), t, "/later", 16); err != nil {
		t.Error(err)
	}
	if got := b.seen(); !slices.Equal(got, []string{"/later"}) {
		t.Errorf("requests arrived: %q", got)
	}
	cancel()
	if err := <-held; err == nil {
		t.Error("held request was answered")
	}
	b.Set(netfault.Conditions{Hold: time.Millisecond})
	if err := b.ask(t.Context(), t, "/soon", 16); err != nil {
		t.Errorf("shortly held request: %v", err)
	}
}

// TestStorm checks that a storm clears the conditions at its end.
func TestStorm(t *testing.T) {
	b := open(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Storm(t.Context(), 300*time.Millisecond, 20*time.Millisecond)
	}()
	for storm := true; storm; {
		_ = b.ask(t.Context(), t, "/storm", 1<<10)
		select {
		case <-ended:
			storm = false
		default:
		}
	}
	if err := b.ask(t.Context(), t, "/last", 1<<16); err != nil {
		t.Errorf("after the storm: %v", err)
	}
}
