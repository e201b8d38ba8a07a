package receiver_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/usage"
	store "mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// A restorable agent appends windows to a spool that is put back from a copy.
type restorable struct {
	t    *testing.T
	node string
	dir  string
	in   *receiver.Receiver
	*machine
	s      *spool.Spool
	resume usage.StartReason
}

func (a *restorable) open() {
	a.t.Helper()
	cfg := spool.Default()
	cfg.Dir = a.dir
	s, err := spool.Open(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		a.t.Fatal(err)
	}
	a.s, a.resume = s, usage.StartResumed
}

func (a *restorable) close() {
	a.t.Helper()
	if err := a.s.Close(); err != nil {
		a.t.Fatal(err)
	}
}

// measure appends a window from the end of the previous one to an instant of boottime.
func (a *restorable) measure(to time.Duration) {
	a.t.Helper()
	w := a.window(to - time.Duration(a.at))
	w.Scope, w.StartReason, a.resume = usage.Machine, a.resume, usage.StartContinued
	if err := a.s.Append(&w, nil, nil, func(bool) []byte { return []byte("state") }, nil); err != nil {
		a.t.Fatal(err)
	}
}

// send offers what waits until nothing does, or the given number of batches.
func (a *restorable) send(most int) {
	a.t.Helper()
	for range 50 {
		sent := false
		for _, st := range a.s.Streams() {
			o, ok, err := a.s.NextOffer(st.Stream)
			if errors.Is(err, fault.ErrNotFound) || err == nil && !ok {
				continue
			}
			if err != nil {
				a.t.Fatal(err)
			}
			if most--; most < 0 {
				return
			}
			r, err := a.in.Offer(a.t.Context(), a.node, a.clock(), o.Bytes)
			if err != nil {
				a.t.Fatal(err)
			}
			if lost, err := a.s.ApplyReply(st.Stream, r); lost != nil || err != nil {
				a.t.Fatal(lost, err)
			}
			sent = true
		}
		if !sent {
			return
		}
	}
	a.t.Fatal("the agent offers batches without end")
}

// accounted checks that all time of the machine is booked once or in a gap of overlapping windows, and returns
// the time that is booked.
func (a *restorable) accounted(l *store.Ledger, what string) (length time.Duration) {
	a.t.Helper()
	ctx := a.t.Context()
	whole := batch.Measured{Boot: a.boot, Extent: usage.Extent{Scope: usage.Machine}, To: a.at}
	booked, err := l.Booked(ctx, a.node, a.boot, a.clock().Boottime, []batch.Measured{whole})
	if err != nil {
		a.t.Fatal(err)
	}
	gaps, err := l.Gaps(ctx, a.began, a.began.Add(time.Duration(a.at)), a.node, query.Scope{All: true})
	if err != nil {
		a.t.Fatal(err)
	}
	var covered []batch.Measured // both
	for _, m := range booked {
		length += time.Duration(m.To - m.From)
		covered = append(covered, m)
	}
	for _, g := range gaps {
		if g.Reason != usage.Overlapped {
			a.t.Errorf("%s: gap %v", what, g)
		}
		covered = append(covered, batch.Measured{From: int64(g.From.Sub(a.began)), To: int64(g.To.Sub(a.began))})
	}
	slices.SortFunc(covered, func(a, b batch.Measured) int { return int(a.From - b.From) })
	at := int64(0)
	for _, m := range covered {
		if m.From > at {
			break
		}
		at = max(at, m.To)
	}
	if at < a.at {
		a.t.Errorf("%s: after %v some time is neither booked nor in a gap: booked %v, gaps %v", what, time.Duration(at), booked, gaps)
	}
	q := query.Query{From: a.began.Add(-time.Hour), To: a.began.Add(24 * time.Hour), By: []query.Dimension{query.ByNode}, Where: map[query.Dimension][]string{query.ByNode: {"name-" + a.node}}, Scope: query.Scope{All: true}}
	answer, err := l.Usage(ctx, q)
	if err != nil {
		a.t.Fatal(err)
	}
	used := int64(0)
	for i := range answer.Groups {
		used += answer.Groups[i].Usage.Sum[usage.CPU].Int64()
	}
	if used != 4*int64(length) {
		a.t.Errorf("%s: %v of CPU time in %v of booked time of 4 CPUs", what, time.Duration(used), length)
	}
	return length
}

// A spool that is put back from a copy gives numbers again that the server has booked with other
// content, whether or not the server still knows the hashes of that. Later windows are booked.
func TestRestoredSpool(t *testing.T) {
	l := ledgertest.Open(t, ledgertest.SQLite(t))
	in := start(t, quick(), l)
	for i := range 8 {
		known, waiting, later := i&1 == 0, i>>1&1, 1+2*(i>>2)
		what := fmt.Sprintf("hashes known %t, %d batches wait in the copy, %d sent later", known, waiting, later)
		node := fmt.Sprint("node", i)
		ledgertest.Node(t, l, node)
		a := &restorable{t: t, node: node, dir: t.TempDir(), in: in, machine: newMachine(fmt.Sprint("boot", i), time.Hour, 0)}
		a.testRestored(l, what, known, waiting, later)
	}
}

func (a *restorable) testRestored(l *store.Ledger, what string, known bool, waiting, later int) {
	const s = time.Second
	t := a.t
	a.open()
	a.resume = usage.StartFirst
	a.measure(10 * s)
	a.send(1)
	if waiting > 0 {
		a.measure(20 * s)
		if _, ok, err := a.s.NextOffer(a.s.Streams()[0].Stream); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	a.close()
	copied, at := filepath.Join(t.TempDir(), "copy"), a.at
	if err := os.CopyFS(copied, os.DirFS(a.dir)); err != nil {
		t.Fatal(err)
	}
	a.open()
	a.send(waiting)
	for i := range later {
		a.measure(time.Duration(30+10*i) * s)
		a.send(1)
	}
	a.close()
	if !known {
		if err := l.Retain(t.Context(), time.Now().Add(50*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	a.dir, a.at = copied, at
	a.open()
	for i := range 4 {
		a.measure(time.Duration(100+10*i) * s)
	}
	a.send(50)
	a.measure(140 * s)
	a.send(50)
	a.close()
	// The first window overlaps with what is booked.
	booked := time.Duration(20+10*later) * s
	if got := a.accounted(l, what); got != booked+40*s {
		t.Errorf("%s: booked %v, want %v and the 40 s after 100 s", what, got, booked)
	}
}
