package server_test

import (
	"net/url"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/pki/enroll"
)

// A simulatedAgent sends windows of a machine, in which all that it has is idle.
type simulatedAgent struct {
	t      *testing.T
	b      *bench
	id     *enroll.Identity
	boot   string
	mark   batch.Mark
	stream byte
}

// send sends the window of these boottimes, in seconds, at its end.
func (a *simulatedAgent) send(start, end int64) {
	a.t.Helper()
	now := time.Now()
	w := usage.Window{Boot: a.boot, Extent: usage.Extent{Scope: usage.Machine}, Start: start * 1e9, End: end * 1e9, Offset: now.UnixNano() - end*1e9, CPUs: 1}
	r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID(a.id.Node(), workload.Idle, ""), Kind: workload.Idle, Name: "idle"}})
	r.Usage.Put(usage.CPU, (end-start)*1e9, usage.Measured)
	r.Usage.Covered = time.Duration(end-start) * time.Second
	w.Rows = []usage.Row{r}
	w.Balance = usage.Balance{Whole: usage.Shares{(end - start) * 1e9}, Idle: usage.Shares{(end - start) * 1e9}}
	next := max(a.mark.Next, 1)
	sent, err := wire.Encode(nil, &batch.Batch{Stream: batch.Stream{a.stream}, Number: next, Previous: a.mark.Last, Windows: []usage.Window{wire.Prepare(&w)}, Names: []batch.Name{wire.NameOf(&r)}})
	if err != nil {
		a.t.Fatal(err)
	}
	a.mark = batch.Mark{Next: next + 1, Last: batch.HashOf(sent)}
	base, err := url.Parse(a.b.url)
	if err != nil {
		a.t.Fatal(err)
	}
	reply, err := sender.NewHTTP(base, a.id.Client(), "test").Offer(a.t.Context(), batch.Clock{Boot: a.boot, Boottime: end * 1e9, Wall: now.UnixNano()}, sent)
	if err != nil || reply.Verdict != batch.Accepted {
		a.t.Fatalf("window from %d to %d s: %v, %v", start, end, reply.Verdict, err)
	}
}

// booked returns the booked CPU time in seconds.
func (a *simulatedAgent) booked() int64 {
	a.t.Helper()
	now := time.Now()
	answer, err := a.b.Ledger.Usage(a.t.Context(), query.Query{Scope: query.Scope{All: true}, From: now.Add(-100 * 24 * time.Hour), To: now.Add(24 * time.Hour),
		By: []query.Dimension{query.ByNode}, Where: map[query.Dimension][]string{query.ByNode: {a.id.Node()}}})
	if err != nil {
		a.t.Fatal(err)
	}
	if len(answer.Groups) == 0 {
		return 0
	}
	return answer.Groups[0].Usage.Sum[usage.CPU].Int64() / 1e9
}

// TestRestoredMachine checks that a machine whose memory image was put back is booked again from the
// first window on that begins after it showed itself.
func TestRestoredMachine(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	a := &simulatedAgent{t: t, b: b, id: b.enroll(t, registry.Agent, "m"), boot: "boot", stream: 1}
	for at := int64(600); at < 900; at += 10 {
		a.send(at, at+10)
	}
	if got := a.booked(); got != 300 {
		t.Fatalf("%d s are booked, want 300", got)
	}
	for at := int64(700); at < 800; at += 10 {
		a.send(at, at+10)
	}
	if got := a.booked(); got != 390 {
		t.Errorf("with 100 s after the image of 700 s was put back %d s are booked, want all but the first window, 390", got)
	}
}

// TestTimeOfAnotherMachine checks that an agent that states the boot id of another machine of its cluster
// cannot book that machine's time before the machine itself has it.
func TestTimeOfAnotherMachine(t *testing.T) {
	b := open(t, t.TempDir(), nil)
	hostile := &simulatedAgent{t: t, b: b, id: b.enroll(t, registry.Agent, "h"), boot: "boot", stream: 2} // the older node
	victim := &simulatedAgent{t: t, b: b, id: b.enroll(t, registry.Agent, "m"), boot: "boot", stream: 1}
	victim.send(600, 610)
	const month = 30 * 24 * 3600
	hostile.send(610, 610+month)
	for at := int64(610); at < 700; at += 10 {
		victim.send(at, at+10)
	}
	if got := victim.booked(); got != 100 {
		t.Errorf("%d s are booked, want 100", got)
	}
}
