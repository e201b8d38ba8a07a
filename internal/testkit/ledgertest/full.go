package ledgertest

import (
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
)

// A Full is a ledger that has something of everything: see [Fill].
type Full struct {
	L     *ledger.Ledger
	t     *testing.T
	marks map[string]batch.Mark
}

// NewFull returns a ledger to be filled.
func NewFull(t *testing.T, l *ledger.Ledger) *Full {
	return &Full{L: l, t: t, marks: map[string]batch.Mark{}}
}

// Entry returns the next entry of a node: balanced minutes of a virtual machine, the system and idle,
// of which its meters measured a part of its boottime each.
func (f *Full) Entry(node, boot string, minutes ...int64) *batch.Entry {
	m := f.marks[node]
	m.Next = max(m.Next, 1)
	e := &batch.Entry{Node: node, Stream: batch.Stream{node[0], node[1]}, Number: m.Next, Previous: m.Last, Boot: boot, Sent: fmt.Append(nil, node, m.Next)}
	e.Hash = batch.HashOf(e.Sent)
	f.marks[node] = batch.Mark{Next: m.Next + 1, Last: e.Hash}
	for _, minute := range minutes {
		n := batch.NodeMinute{Minute: minute, Covered: time.Minute, CPUs: 1}
		for i, r := range usage.Wholes {
			switch r {
			case usage.CPU:
				n.Whole[i], n.Skew[i] = 60e9+5, -5
			case usage.EnergyPackage:
				n.Whole[i] = 30e6
			}
		}
		e.Nodes = append(e.Nodes, n)
		for i, k := range []workload.Kind{workload.VM, workload.System, workload.Idle} {
			key := ""
			if k == workload.VM {
				key = guestUUID
			}
			id := workload.NewID(node, k, key)
			short, _ := workload.ShortIDOf(id)
			if minute == minutes[0] {
				e.Names = append(e.Names, batch.Name{ID: id, Kind: k, Key: key, Name: k.String(), Labels: map[string]string{"app": "x"}})
			}
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, []int64{20e9, 10e9, 30e9}[i], usage.Measured)
			u.Put(usage.EnergyPackage, []int64{10e6, 5e6, 15e6}[i], usage.Measured)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: minute, Usage: u})
		}
		e.Through = time.Unix(60*(minute+1), 0).UTC()
		e.Boottime = e.Through.UnixNano() - Day.UnixNano() + int64(time.Hour)
	}
	return e
}

// Measured states the seconds of boottime that an entry measured.
func Measured(e *batch.Entry, from, to time.Duration) {
	e.Boottime = max(e.Boottime, int64(to))
	e.Measured = append(e.Measured, batch.Measured{Boot: e.Boot, Extent: usage.Extent{Scope: usage.Machine}, From: int64(from), To: int64(to)})
}

// Book books entries, which must be accepted.
func (f *Full) Book(es ...*batch.Entry) {
	f.t.Helper()
	f.try(func() error {
		results, err := f.L.Book(f.t.Context(), es)
		for _, r := range results {
			if err == nil && (r.Err != nil || r.Verdict != batch.Accepted) {
				f.t.Fatalf("%v, %v", r.Verdict, r.Err)
			}
		}
		return err
	})
}

func (f *Full) try(call func() error) {
	f.t.Helper()
	f.Must(Try(f.t, call))
}

// Must ends the test after an error.
func (f *Full) Must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// GuestUUID is the UUID of the virtual machine on node host.
const GuestUUID = guestUUID

// Fill fills a ledger with two folded days and an open one: a host with its guest, a node of jobs, a
// meter outside, gaps, clipped batches with holes in what is booked, a restored kernel, and nodes
// with equal host names.
func Fill(t *testing.T, l *ledger.Ledger) *Full {
	t.Helper()
	ctx := t.Context()
	f := NewFull(t, l)
	for _, n := range []registry.Node{{ID: "host", MachineID: "1"}, {ID: "guest", MachineID: "2"}, {ID: "clone", MachineID: "3"}, {ID: "jobs", MachineID: registry.JobsMachineID("1")}} {
		n.Cluster, n.Name, n.Boot, n.At = "c", "same", "b", Day
		f.try(func() error { return l.PutNode(ctx, n) })
	}
	m := Day.Unix() / 60
	f.try(func() error {
		_, err := l.ExternalMeters(ctx, []external.Meter{{Name: "pdu", Kind: power.Energy, Wait: 26 * time.Hour}}, time.Unix(60*(m-1), 0))
		return err
	})
	end := Day.Add(2 * time.Minute)
	handover := func(e *batch.Entry, as workload.ID, off int64) *batch.Entry {
		h := batch.TimedHandover{From: end.Add(-10 * time.Second), To: end}
		h.Guest, h.Workload = guestUUID, as
		for n := int64(1); n < 5; n++ {
			h.Shares = append(h.Shares, power.Share{Epoch: "e", N: n, Active: 7*n + off*(n/4), Idle: 3 * n})
		}
		e.Handovers = append(e.Handovers, h)
		return e
	}
	host, guest := f.Entry("host", "b1", m, m+1, m+61), f.Entry("guest", "b2", m, m+1)
	Measured(host, time.Hour, time.Hour+2*time.Minute)
	Measured(host, time.Hour+3*time.Minute, time.Hour+4*time.Minute) // with a hole
	handover(host, workload.NewID("host", workload.VM, guestUUID), 0)
	handover(guest, "", 5) // one share differs
	jobs := f.Entry("jobs", "b1", m)
	f.Book(host, guest, jobs, f.Entry("clone", "b3", m))
	for minute := m; minute < m+2; minute++ {
		f.MeterMinute(minute, nil)
	}
	f.try(func() error {
		r, err := l.Lost(ctx, "clone", batch.Loss{Stream: batch.Stream{9}, From: 1, To: 3, Hash: batch.Hash{3},
			Gap: usage.Gap{From: Day, To: end, Reason: usage.Forgotten, Detail: "gone"}}, end)
		if err == nil && r.Verdict != batch.Accepted {
			t.Fatal(r)
		}
		return err
	})
	f.Fold(Day.Add(30 * time.Hour))
	next := f.Entry("host", "b1", m+60, m+1440, m+2880) // late, on the second day, and on the open one
	Measured(next, 30*time.Hour, 49*time.Hour)
	next.Gaps = []usage.Gap{{From: Day.Add(time.Hour), To: Day.Add(2 * time.Hour), Reason: usage.Overlapped}}
	f.Book(next, f.Entry("guest", "b2", m+1440))
	restored := f.Entry("host", "b1", m+1441) // an earlier memory image measures booked time again
	restored.Boottime = int64(42 * time.Hour)
	Measured(restored, 41*time.Hour, 42*time.Hour)
	restored.Claimed, restored.Measured = restored.Measured, nil // as the receiver cuts it
	f.Book(restored)
	f.Fold(Day.Add(50 * time.Hour))
	return f
}

// MeterMinute books a minute of the meter of nodes host and clone, or what failed.
func (f *Full) MeterMinute(minute int64, failures map[string]string) {
	f.t.Helper()
	gm := &external.GroupMinute{Minute: minute, Meters: []external.MeterEnergy{{Meter: "pdu", Nodes: []string{"host", "clone"}, Energy: 80e6, Error: 1e6}},
		NeededFrom: map[string]int64{"pdu": external.MinuteStart(minute)}, Failures: failures}
	f.try(func() error {
		_, done, err := f.L.BookMeterMinute(f.t.Context(), gm)
		if err == nil && !done {
			f.t.Fatalf("minute %d of the meter is not booked", minute)
		}
		return err
	})
}

// Fold folds up to a time.
func (f *Full) Fold(now time.Time) {
	f.t.Helper()
	f.try(func() error { return f.L.Fold(f.t.Context(), now) })
}
