package cut_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/xtest/cut"
)

// bench is a server behind a proxy, that notes the bodies it reads.
type bench struct {
	*cut.Proxy
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
	p, err := cut.Open(s.Listener.Addr().String(), 1)
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

// ask sends n bytes on a connection of its own, and compares what comes back.
func (b *bench) ask(t *testing.T, path string, n int, long time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
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
		t.Errorf("%d bytes came back of %d, or others", len(got), len(body))
	}
	return err
}

func (b *bench) seen() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

const long = 10 * time.Second

// until waits for what has to come.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(long); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not come")
		}
	}
}

func TestPass(t *testing.T) {
	b := open(t)
	for _, w := range []cut.Weather{{}, {Delay: time.Millisecond, Hold: time.Millisecond}} {
		b.Set(w)
		if err := b.ask(t, "/a", 1<<20, long); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.Stats(); s.Conns != 2 || s.Lost != 0 || s.Repeated != 0 || b.size != 2<<20 {
		t.Errorf("%+v, %d bytes", s, b.size)
	}
}

func TestRate(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Rate: 1 << 20})
	start := time.Now()
	if err := b.ask(t, "/a", 100<<10, long); err != nil {
		t.Fatal(err)
	}
	// A tenth of a second on the way there, and part of another on the way back.
	if took := time.Since(start); took < 95*time.Millisecond {
		t.Errorf("100 KiB at 1 MiB a second took %v", took)
	}
}

func TestDown(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Down: true})
	if err := b.ask(t, "/a", 16, long); err == nil || len(b.seen()) != 0 {
		t.Errorf("it came through: %v", err)
	}
	b.Set(cut.Weather{Silent: true})
	failed := make(chan error, 1)
	go func() { failed <- b.ask(t, "/b", 16, long) }()
	until(t, func() bool { return b.Stats().Conns == 2 })
	b.Set(cut.Weather{Down: true})
	if err := <-failed; err == nil {
		t.Error("a connection that was there lives on")
	}
}

func TestSilent(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Silent: true})
	if err := b.ask(t, "/a", 16, 30*time.Millisecond); err == nil {
		t.Error("it was answered")
	}
	done := make(chan error, 1)
	go func() { done <- b.ask(t, "/b", 16, long) }()
	until(t, func() bool { return b.Stats().Conns == 2 })
	if len(b.seen()) != 0 {
		t.Error("it came through")
	}
	b.Set(cut.Weather{})
	if err := <-done; err != nil {
		t.Errorf("when the silence ended: %v", err)
	}
}

func TestLose(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Lose: 1})
	if err := b.ask(t, "/a", 16, long); err == nil || len(b.seen()) != 1 || b.Stats().Lost != 1 {
		t.Errorf("%v after %q, %+v", err, b.seen(), b.Stats())
	}
}

func TestCut(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Cut: 1})
	if err := b.ask(t, "/a", 1<<20, long); err == nil || len(b.seen()) != 0 {
		t.Errorf("%v after %q", err, b.seen())
	}
}

func TestRepeat(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Repeat: 1})
	if err := b.ask(t, "/a", 1<<16, long); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return slices.Equal(b.seen(), []string{"/a", "/a"}) })
}

func TestHold(t *testing.T) {
	b := open(t)
	b.Set(cut.Weather{Hold: 100 * time.Millisecond})
	var all sync.WaitGroup
	var sent []string
	for i := range 12 {
		path := fmt.Sprintf("/%02d", i)
		sent = append(sent, path)
		all.Go(func() {
			if err := b.ask(t, path, 16, long); err != nil {
				t.Error(err)
			}
		})
		until(t, func() bool { return b.Stats().Conns > int64(i) })
	}
	all.Wait()
	if got := b.seen(); len(got) != 12 || slices.Equal(got, sent) {
		t.Errorf("they arrived as %q", got)
	}
}

// TestStorm checks that a storm ends when it should, with fine weather.
func TestStorm(t *testing.T) {
	b := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { b.Storm(ctx, 300*time.Millisecond, 20*time.Millisecond) })
	for i := range 30 {
		_ = b.ask(t, fmt.Sprint("/", i), 1<<10, 20*time.Millisecond)
	}
	all.Wait()
	cancel()
	if err := b.ask(t, "/last", 1<<16, long); err != nil {
		t.Errorf("after the storm: %v", err)
	}
}
