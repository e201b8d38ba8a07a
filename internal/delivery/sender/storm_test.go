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

// judge is a server of HTTP that takes batches and adds up what is in them.
type judge struct {
	t      testing.TB
	mu     sync.Mutex
	marks  map[batch.Stream]batch.Mark
	hashes map[batch.Stream][]batch.Hash
	cpu    int64
	known  int // batches that came again
}

func (v *judge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return // it was cut on the way
	}
	b, err := wire.Decode(sent, wire.Default())
	if err != nil || r.URL.Path != "/v1/batches" {
		v.t.Errorf("%s: %v", r.URL, err)
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	m, ok := v.marks[b.Stream]
	if !ok {
		m.Next = 1
	}
	var known *batch.Hash
	if b.Number < m.Next {
		known = &v.hashes[b.Stream][b.Number-1]
	}
	hash := batch.HashOf(sent)
	p := batch.Reply{Verdict: m.Judge(b.Number, b.Previous, hash, known)}
	switch p.Verdict {
	case batch.Accepted:
		m = batch.Mark{Next: b.Number + 1, Last: hash}
		v.marks[b.Stream], v.hashes[b.Stream] = m, append(v.hashes[b.Stream], hash)
		for i := range b.Windows {
			for j := range b.Windows[i].Rows {
				v.cpu += b.Windows[i].Rows[j].Usage.Amount[usage.CPU]
			}
		}
	case batch.Duplicate:
		v.known++
	default:
		// There is one sender, and nothing of what it sent is forgotten.
		v.t.Errorf("batch %d of %v is %v, wanted %d", b.Number, b.Stream, p.Verdict, m.Next)
		w.WriteHeader(http.StatusConflict)
	}
	p.Next = m.Next
	_ = json.NewEncoder(w).Encode(p) // who is cut off does not hear it
}

// TestStorm sends from a spool on a disk, over a network in which everything
// goes wrong, and checks that all arrives once.
func TestStorm(t *testing.T) {
	v := &judge{t: t, marks: map[batch.Stream]batch.Mark{}, hashes: map[batch.Stream][]batch.Hash{}}
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
	shipper := sender.New(sending, p, sender.NewHTTP(&url.URL{Scheme: "http", Host: proxy.Addr()}, client, "test"), clock, quiet)

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if err := shipper.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	weather := make(chan struct{})
	go func() {
		defer close(weather)
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
		if err := p.Append(w, nil, nil, func(bool) []byte { return []byte{1} }); err != nil {
			t.Fatal(err)
		}
	}
	for storm := true; storm; {
		next()
		select {
		case <-weather:
			storm = false
		case <-time.After(5 * time.Millisecond):
		}
	}
	// The storm may have met nobody. So it stays bad until a batch came twice.
	proxy.Set(netfault.Conditions{Cut: 0.2, Lose: 0.4, Repeat: 0.2})
	testkit.Eventually(t, "a batch came again", func() bool {
		next()
		v.mu.Lock()
		defer v.mu.Unlock()
		return i > 50 && v.known > 0 && shipper.Status().Retries > 0
	})
	proxy.Set(netfault.Conditions{})
	cancel()
	all.Wait()
	for err := shipper.Flush(t.Context()); err != nil; err = shipper.Flush(t.Context()) {
		// What the storm left on its way may cost a try.
		if !errors.Is(err, fault.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cpu != booked {
		t.Errorf("%d arrived of %d", v.cpu, booked)
	}
	t.Logf("%+v, %d batches came again, network %+v", shipper.Status(), v.known, proxy.Stats())
}

var _ sender.Spool = (*spool.Spool)(nil)
