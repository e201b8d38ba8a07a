package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/faultfs"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// A taker is a server that accepts everything.
type taker struct {
	mu      sync.Mutex
	windows []usage.Window
	names   []batch.Name
	gaps    []usage.Gap
}

func (s *taker) Offer(_ context.Context, _ batch.Clock, sent []byte) (batch.Reply, error) {
	b, err := wire.Decode(sent, wire.Default())
	if err != nil {
		return batch.Reply{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.windows, s.names, s.gaps = append(s.windows, b.Windows...), append(s.names, b.Names...), append(s.gaps, b.Gaps...)
	return batch.Reply{Verdict: batch.Accepted, Next: b.Number + 1}, nil
}

func (*taker) Lost(_ context.Context, l batch.Loss) (batch.Reply, error) {
	return batch.Reply{}, fmt.Errorf("%+v is said to be lost", l)
}

func (*taker) Directives(context.Context, string, time.Duration, []string) (directive.List, string, bool, error) {
	return directive.List{}, "", false, fault.ErrUnsupported
}

func (*taker) Section(context.Context, string) ([]byte, error) { return nil, fault.ErrUnsupported }

func (*taker) Reads(context.Context) (wire.Format, error) { return wire.LatestFormat(), nil }

// A bench is an agent of this machine whose ticks are controlled by the test.
type bench struct {
	*Agent
	server *taker
	log    *syncbuf.Buffer
}

// open opens an agent whose spool is in fs.
func open(t *testing.T, fs *faultfs.FS, server *taker) *bench {
	t.Helper()
	return openWith(t, fs, server, time.Second) // a window at each tick
}

// openWith is open with windows of a length.
func openWith(t *testing.T, fs *faultfs.FS, server *taker, window time.Duration) *bench {
	t.Helper()
	b := &bench{server: server, log: &syncbuf.Buffer{}}
	log := slog.New(slog.NewTextHandler(b.log, nil))
	a := &Agent{node: "n", names: newNameTracker(nil), jobNames: map[string]batch.Name{}, openJobs: map[string]batch.Name{}, powerModel: powerModelFile{log: log}, log: log}
	b.Agent = a
	var err error
	if a.host, err = hostfs.Open("/"); err != nil {
		t.Fatal(err)
	}
	cfg := spool.Default()
	cfg.Dir, cfg.FS = "/spool", fs
	if a.Spool, err = spool.Open(cfg, log); err != nil {
		t.Fatal(err)
	}
	a.Machine, err = sources.Open(sources.Config{Config: sampler.Config{Tick: time.Second, Window: window}, Reader: sources.Files,
		Node: "n", Checkpoint: a.Spool.Checkpoint()}, log)
	if err != nil {
		t.Fatal(err)
	}
	a.Sender = sender.New(sender.Default(), a.Spool, server, a.clock, log)
	return b
}

// tick takes a tick, and stores its window.
func (b *bench) tick(t *testing.T) {
	t.Helper()
	if _, err := b.Machine.Tick(); err != nil {
		t.Fatal(err)
	}
	if w := b.Machine.ClosedWindow(); w != nil {
		b.storeWindow(w)
	}
}

// close stops the agent; a killed one does not close its spool.
func (b *bench) close(t *testing.T, killed bool) {
	t.Helper()
	if killed {
		b.Spool = nil
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
}

// TestHeld checks that windows that do not fit on the disk are held, merged, and stored later, so
// that the server gets each nanosecond once, even if the agent is killed meanwhile, or after the first
// window that fits again.
func TestHeld(t *testing.T) {
	hosttest.Need(t, "procfs")
	for _, when := range []string{"not killed", "killed meanwhile", "killed after"} {
		t.Run(when, func(t *testing.T) {
			fs, server := faultfs.New(func(int) int { return 0 }), &taker{}
			b := open(t, fs, server)
			b.tick(t)
			b.tick(t)
			b.tick(t)
			fs.SetFree(0)
			for range 3 {
				b.tick(t)
			}
			if b.unsaved == nil || b.State().Failing == "" || b.State().Windows != 2 {
				t.Fatalf("status %+v, want two windows and a full disk", b.State())
			}
			if n := strings.Count(b.log.String(), "the spool rejects windows"); n != 1 {
				t.Errorf("logged %d times, want once:\n%s", n, b.log)
			}
			fs.SetFree(-1)
			kill := func() {
				b.close(t, true)
				fs.Crash()
				b = open(t, fs, server)
			}
			if when == "killed meanwhile" {
				kill()
			}
			b.tick(t)
			if when == "killed after" {
				kill()
				b.tick(t)
			}
			b.tick(t)
			if b.unsaved != nil || b.State().Failing != "" {
				t.Errorf("status %+v, want that windows are stored", b.State())
			}
			if when == "not killed" && !strings.Contains(b.log.String(), "accepts windows again") {
				t.Errorf("log:\n%s", b.log)
			}
			if err := b.Sender.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			checkOnce(t, server.windows)
			named := map[workload.ID]int{}
			for _, n := range server.names {
				if n.Kind == workload.Idle {
					named[n.ID]++
				}
			}
			if want := 1; when == "not killed" && (len(named) != 1 || named[workload.NewID("n", workload.Idle, "")] != want) {
				t.Errorf("the name of idle was sent %v times, want once", named)
			}
			b.close(t, false)
		})
	}
}

// checkOnce checks that windows are contiguous, and that their sum is the growth of each workload's
// total. A workload whose group ended and was made again begins its total again, as those of other programs of the machine may:
// it counts in the whole only.
func checkOnce(t *testing.T, windows []usage.Window) {
	t.Helper()
	type account struct {
		sum, total   int64
		ended, again bool
	}
	booked := map[workload.ShortID]*account{}
	for i := range windows {
		w := &windows[i]
		if i > 0 && w.Start != windows[i-1].End {
			t.Errorf("window %d starts at %d, the previous one ends at %d", i, w.Start, windows[i-1].End)
		}
		var parts int64
		for j := range w.Rows {
			r := &w.Rows[j]
			cpu, ok := r.Usage.Get(usage.CPU)
			if !ok {
				continue
			}
			parts += cpu
			a := booked[r.ShortID]
			if a == nil {
				a = &account{}
				booked[r.ShortID] = a
			}
			a.again = a.again || a.ended || r.Has.Has(usage.CPU) && r.Total[usage.CPU] < a.total
			a.ended = a.ended || r.Ended
			a.sum += cpu
			if r.Has.Has(usage.CPU) {
				a.total = r.Total[usage.CPU]
			} else {
				a.total += cpu
			}
		}
		if whole := w.Balance.Whole.Get(usage.CPU) + w.Balance.Skew.Get(usage.CPU); parts != whole {
			t.Errorf("window %d: the parts are %d ns, the whole with its skew is %d", i, parts, whole)
		}
	}
	if len(windows) < 3 {
		t.Fatalf("%d windows", len(windows))
	}
	for short, a := range booked {
		if a.sum != a.total && !a.again {
			t.Errorf("workload %v: %d ns in windows, %d booked in all", short, a.sum, a.total)
		}
	}
}

// TestJobs checks that jobs are open from registration to end, or until their group is gone.
func TestJobs(t *testing.T) {
	b := open(t, faultfs.New(func(int) int { return 0 }), &taker{})
	defer b.close(t, false)
	h := jobHooks{b.Agent}
	path := t.TempDir() + "/s"
	var err error
	if b.socket, err = socket.Listen(path, h, b.Agent.log); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{jobA, jobB} {
		if _, err := h.Register(id, socket.Job{ID: id, Name: "n" + id, User: "u", Labels: map[string]string{"k": "v"}, Started: noon}); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.State(); s.Jobs != 2 {
		t.Errorf("%d jobs are open, want 2", s.Jobs)
	}
	b.applyJobNames(noon)
	rows := []live.Row{{ID: workload.NewID(b.node, workload.Job, jobA), Name: "run 000000"}, {ID: workload.NewID(b.node, workload.Job, "other"), Name: "run 000001"}}
	if b.names.apply(b.node, rows); rows[0].Name != "n"+jobA || rows[0].User != "u" || rows[1].Name != "run 000001" {
		t.Errorf("rows of a tick after the registration: %+v", rows)
	}
	if n := b.names.jobs[jobA]; n == nil || n.Job != "n"+jobA || n.User != "u" || n.Labels["k"] != "v" || !n.Started.Equal(noon) {
		t.Errorf("the job's name is %+v", n)
	}
	// The agent records the end even without ticks.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.End(ctx, jobA, socket.Outcome{Ended: noon.Add(time.Minute), Exit: 3}); err == nil {
		t.Error("End succeeded without a tick")
	}
	b.applyJobNames(noon)
	if n := b.names.jobs[jobA]; n.Exit == nil || *n.Exit != 3 || !n.Ended.Equal(noon.Add(time.Minute)) || n.Job != "n"+jobA {
		t.Errorf("the job's end is %+v", n)
	}
	w := window("-" + jobB + "!")
	b.names.collectDue(w, noon)
	b.forgetJobs(b.names.markSent(w, noon))
	if s := b.State(); s.Jobs != 1 {
		t.Errorf("%d jobs are open, want the one that was not read to its end", s.Jobs)
	}
}
