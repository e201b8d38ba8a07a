package spool_test

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// BenchmarkLive measures one window of 500 workloads: appended only, and offered and acknowledged
// too, as while a server answers. The difference is the cost of the log of batches.
func BenchmarkLive(b *testing.B) {
	b.Run("append", func(b *testing.B) { benchmarkLive(b, false) })
	b.Run("append and offer", func(b *testing.B) { benchmarkLive(b, true) })
}

func benchmarkLive(b *testing.B, offer bool) {
	cfg := spool.Default()
	cfg.Dir = b.TempDir()
	s, err := spool.Open(cfg, quiet())
	if err != nil {
		b.Fatal(err)
	}
	m := newBusyMachine(500)
	checkpoint := make([]byte, 4000) // changes of 500 accounts, of which most rest
	var sent, windows int
	used := cpuTime(b)
	for b.Loop() {
		b.StopTimer()
		paused := cpuTime(b)
		w := m.window()
		used += cpuTime(b) - paused
		b.StartTimer()
		if err := s.Append(w, nil, nil, func(bool) []byte { return checkpoint }, nil); err != nil {
			b.Fatal(err)
		}
		windows++
		if !offer {
			continue
		}
		o, ok, err := s.NextOffer(live(s))
		if err != nil || !ok {
			b.Fatal(ok, err)
		}
		sent += len(o.Bytes)
		if _, err := s.ApplyReply(o.Stream, batch.Reply{Verdict: batch.Accepted, Next: o.Number + 1}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64((cpuTime(b)-used).Microseconds())/float64(windows), "cpu-µs/op")
	b.ReportMetric(float64(sent)/float64(windows), "sent-B/op")
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A busyMachine makes windows of which a tenth of the workloads is busy, and the others have memory only.
type busyMachine struct {
	rand *rand.Rand
	end  int64
	rows []usage.Row
}

func newBusyMachine(n int) *busyMachine {
	m := &busyMachine{rand: rand.New(rand.NewPCG(1, 2))}
	for i := range n {
		id := workload.Workload{ID: workload.NewID("node", workload.Service, string(rune('a'+i))), Kind: workload.Service}
		m.rows = append(m.rows, usage.NewRow(&usage.Identity{Workload: id}))
	}
	return m
}

func (m *busyMachine) window() *usage.Window {
	w := &usage.Window{Boot: "boot", Start: m.end, End: m.end + tick, Offset: started, StartReason: usage.StartContinued, CPUs: 32}
	m.end = w.End
	for i := range m.rows {
		row := &m.rows[i]
		row.Usage = usage.Usage{Covered: time.Duration(tick)}
		for r := usage.Resource(1); r <= usage.PIDsPeak; r++ {
			v := int64(i) << 30
			if i%10 == 0 {
				v = m.rand.Int64N(1 << 33)
			} else if r != usage.Memory && r != usage.MemoryAnon && r != usage.MemoryFile {
				v = 0
			}
			row.Usage.Put(r, v, usage.Measured)
			row.Total[r] += v
		}
		row.Has = row.Usage.Present
		w.Rows = append(w.Rows, *row)
	}
	return w
}
