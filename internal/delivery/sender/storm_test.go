package sender_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/netfault"
)

// bookingServer is an HTTP server that accepts batches and sums their CPU time.
type bookingServer struct {
	t      testing.TB
	mu     sync.Mutex
	marks  map[batch.Stream]batch.Mark
	hashes map[batch.Stream][]batch.Hash
	cpu    int64
	known  int // duplicate batches
}

func (s *bookingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return // the proxy cut the connection
	}
	b, err := wire.Decode(sent, wire.Default())
	if err != nil || r.URL.Path != "/v1/batches" {
		s.t.Errorf("%s: %v", r.URL, err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.marks[b.Stream]
	if !ok {
		m.Next = 1
	}
	var known *batch.Hash
	if b.Number < m.Next {
		known = &s.hashes[b.Stream][b.Number-1]
	}
	hash := batch.HashOf(sent)
	p := batch.Reply{Verdict: m.Judge(b.Number, b.Previous, hash, known)}
	switch p.Verdict {
	case batch.Accepted:
		m = batch.Mark{Next: b.Number + 1, Last: hash}
		s.marks[b.Stream], s.hashes[b.Stream] = m, append(s.hashes[b.Stream], hash)
		for i := range b.Windows {
			for j := range b.Windows[i].Rows {
				s.cpu += b.Windows[i].Rows[j].Usage.Amount[usage.CPU]
			}
		}
	case batch.Duplicate:
		s.known++
	default:
		// The only sender has never lost a batch.
		s.t.Errorf("batch %d of %v is %v, wanted %d", b.Number, b.Stream, p.Verdict, m.Next)
		w.WriteHeader(http.StatusConflict)
	}
	p.Next = m.Next
	_ = json.NewEncoder(w).Encode(p) // the proxy may have cut the connection
}

// TestStorm sends from a spool on disk through a faulty network, and checks that
// everything arrives once.
func TestStorm(t *testing.T) {
	v := &bookingServer{t: t, marks: map[batch.Stream]batch.Mark{}, hashes: map[batch.Stream][]batch.Hash{}}
	s := httptest.NewServer(v)
	defer s.Close()
	proxy, err := netfault.Open(s.Listener.Addr().String(), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := proxy.Close(); err != nil {
			t.Error(err)
		}
	}()
	quiet := slog.New(slog.DiscardHandler)
	cfg := spool.Default()
	cfg.Dir, cfg.MaxBytes = t.TempDir(), 16<<20
	p, err := spool.Open(cfg, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	sending := sender.Default()
	sending.MinBackoff, sending.MaxBackoff = time.Millisecond, 20*time.Millisecond
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	snd := sender.New(sending, p, sender.NewHTTP(&url.URL{Scheme: "http", Host: proxy.Addr()}, client, "test"), clock, quiet)

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := snd.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stormDone := make(chan struct{})
	go func() {
		defer close(stormDone)
		proxy.Storm(ctx, 1500*time.Millisecond, 15*time.Millisecond)
	}()
	var booked, i int64
	next := func() {
		const span = int64(10 * time.Second)
		i++
		w := &usage.Window{Boot: "boot", Start: (i - 1) * span, End: i * span, Offset: time.Now().UnixNano() - i*span, CPUs: 2}
		row := usage.Row{ShortID: 7, Has: usage.SetOf(usage.CPU)}
		row.Usage.Put(usage.CPU, i, usage.Measured)
		booked += i
		row.Total[usage.CPU] = booked
		w.Rows = []usage.Row{row}
		if err := p.Append(w, nil, nil, func(bool) []byte { return []byte{1} }, nil); err != nil {
			t.Fatal(err)
		}
	}
	for storm := true; storm; {
		next()
		select {
		case <-stormDone:
			storm = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	// The storm may have hit no batch, so faults continue until a batch is repeated.
	proxy.Set(netfault.Conditions{Cut: 0.2, Lose: 0.4, Repeat: 0.2})
	testkit.Eventually(t, "a batch is repeated", func() bool {
		next()
		v.mu.Lock()
		defer v.mu.Unlock()
		return i > 50 && v.known > 0 && snd.Status().Retries > 0
	})
	proxy.Set(netfault.Conditions{})
	cancel()
	all.Wait()
	for err := snd.Flush(t.Context()); err != nil; err = snd.Flush(t.Context()) {
		// Connections from the storm may still fail.
		if !errors.Is(err, fault.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cpu != booked {
		t.Errorf("booked %d, want %d", v.cpu, booked)
	}
	t.Logf("%+v, %d duplicate batches, network %+v", snd.Status(), v.known, proxy.Stats())
}

var _ sender.Spool = (*spool.Spool)(nil)
