package web_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/fleet"
)

// A bookedNode books the minutes of a machine as they are, without an agent.
type bookedNode struct {
	t      *testing.T
	l      *ledger.Ledger
	id     string
	cpus   int
	energy bool
	stream batch.Stream
	mark   batch.Mark
	entry  *batch.Entry
	named  map[workload.ID]bool
}

// newBookedNode enrolls a machine. number makes its id.
func newBookedNode(t *testing.T, l *ledger.Ledger, number int, name string, energy bool) *bookedNode {
	t.Helper()
	n := &bookedNode{t: t, l: l, id: fmt.Sprintf("01J0000000000000000001%04d", number), cpus: 4, energy: energy, stream: batch.Stream{7, byte(number), byte(number >> 8)}, mark: batch.Mark{Next: 1}, named: map[workload.ID]bool{}}
	node := registry.Node{ID: n.id, Name: name, Cluster: []string{"north", "south"}[number%2], MachineID: name, Boot: name, At: time.Now().Add(-48 * time.Hour)}
	if err := l.PutNode(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	n.entry = &batch.Entry{}
	return n
}

// A bookedUse is what one workload used in a minute. Amounts that are not set are absent.
type bookedUse struct {
	name    batch.Name
	covered time.Duration
	amounts map[usage.Resource]int64
}

// minute books a minute, of which covered was measured; the rest of the capacity is idle.
func (n *bookedNode) minute(minute int64, covered time.Duration, list ...bookedUse) {
	n.t.Helper()
	whole := batch.NodeMinute{Minute: minute, Covered: covered, CPUs: n.cpus}
	capacity := map[usage.Resource]int64{usage.CPU: int64(n.cpus) * covered.Nanoseconds(), usage.Memory: 64 << 30 * int64(covered.Seconds())}
	if n.energy {
		capacity[usage.EnergyPackage] = 100e6 * int64(covered.Seconds())
	}
	for _, u := range list {
		if v, ok := u.amounts[usage.EnergyRest]; ok {
			capacity[usage.EnergyRest] += v
		}
	}
	idle := bookedUse{name: batch.Name{Kind: workload.Idle, Name: "idle"}, covered: covered, amounts: map[usage.Resource]int64{}}
	for r, v := range capacity {
		whole.Whole[slices.Index(usage.Wholes[:], r)] = v
		for _, u := range list {
			v -= u.amounts[r]
		}
		idle.amounts[r] = v
	}
	n.entry.Nodes = append(n.entry.Nodes, whole)
	for _, u := range append(list, idle) {
		u.name.ID = workload.NewID(n.id, u.name.Kind, u.name.Key+u.name.Name)
		u.name.Key = u.name.Key + u.name.Name
		short, ok := workload.ShortIDOf(u.name.ID)
		if !ok {
			n.t.Fatalf("no short id of %s", u.name.ID)
		}
		if !n.named[u.name.ID] {
			n.named[u.name.ID] = true
			n.entry.Names = append(n.entry.Names, u.name)
		}
		m := batch.Minute{Workload: short, Minute: minute}
		m.Usage.Covered = u.covered
		for r, v := range u.amounts {
			q := usage.Measured
			if r >= usage.EnergyPackage {
				q = usage.Apportioned
			}
			m.Usage.Put(r, v, q)
		}
		n.entry.Minutes = append(n.entry.Minutes, m)
	}
	if len(n.entry.Minutes) > 2000 {
		n.book()
	}
}

// book sends what was collected to the ledger.
func (n *bookedNode) book() {
	n.t.Helper()
	e := n.entry
	e.Node, e.Stream, e.Number, e.Previous, e.Boot = n.id, n.stream, n.mark.Next, n.mark.Last, n.id
	e.Sent = fmt.Append(nil, n.id, n.mark.Next)
	e.Hash = batch.HashOf(e.Sent)
	for _, m := range e.Nodes {
		if end := time.Unix(m.Minute*60, 0).Add(time.Minute); end.After(e.Through) {
			e.Through = end
		}
	}
	if r, err := n.l.Book(n.t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		n.t.Fatalf("Book: %+v, %v", r, err)
	}
	n.mark = batch.Mark{Next: n.mark.Next + 1, Last: e.Hash}
	n.entry = &batch.Entry{}
}

// full are amounts of all figures, odd ones, of a minute in which so much CPU time was used.
func full(minute, cpu int64) map[usage.Resource]int64 {
	wave := 1 + minute%7
	return map[usage.Resource]int64{usage.CPU: cpu, usage.CPUUser: cpu / 3 * 2, usage.CPUSystem: cpu - cpu/3*2, usage.CPUThrottled: 17 * wave, usage.Memory: 60 * (wave<<28 + 12345), usage.MemoryPeak: wave<<29 + 77,
		usage.MemoryAnon: 40 * wave << 28, usage.MemoryFile: 20 * wave << 28, usage.DiskRead: 4096 * wave, usage.DiskWritten: 12288 * wave, usage.NetworkRx: 1501 * wave, usage.NetworkTx: 977 * wave,
		usage.Processes: wave, usage.PIDs: 60 * wave, usage.PressureCPU: 1e6 * wave, usage.PressureMemory: 1e5 * wave, usage.PressureIO: 1e4 * wave, usage.EnergyPackage: 1e6*wave + 3, usage.EnergyError: 5e4 * wave}
}

func only(all map[usage.Resource]int64, wanted ...usage.Resource) map[usage.Resource]int64 {
	out := map[usage.Resource]int64{}
	for _, r := range wanted {
		out[r] = all[r]
	}
	return out
}

// The hard ledger, in minutes before now.
const (
	hardBegin  = 26 * 60 // it begins
	hardRuns   = 2000    // runs of job many, 40 s apart
	outageAll  = 50      // to 40: no machine is measured; the server restarts
	outageOne  = 25      // to 18: gamma is not measured
	hardLatest = 1
)

// hardLedger books what is hard to draw: a job of one minute, runs of 0.1 s, 2000 runs, an outage of
// all machines and of one, a restart of the server, a machine without energy and with absent figures.
func hardLedger(t *testing.T) *fleet.Fleet {
	t.Helper()
	f := fleet.Open(t, fleet.Config{})
	now := time.Now().Unix() / 60
	nodes := []*bookedNode{newBookedNode(t, f.Server.Ledger, 0, "alpha", true), newBookedNode(t, f.Server.Ledger, 1, "beta", false), newBookedNode(t, f.Server.Ledger, 2, "gamma", true)}
	run := func(i int, minute int64) bookedUse {
		exit, start := 0, time.Unix(minute*60, 0).Add(time.Duration(i%600)*99*time.Millisecond)
		n := batch.Name{Kind: workload.Job, Key: fmt.Sprint(i), Name: "many", Job: "many", User: "ann", Started: start, Ended: start.Add(100 * time.Millisecond), Exit: &exit}
		amounts := full(int64(i), 90e6+int64(i))
		delete(amounts, usage.EnergyPackage)
		amounts[usage.EnergyRest] = 7000 + int64(i)
		return bookedUse{n, 100 * time.Millisecond, only(amounts, usage.CPU, usage.MemoryPeak, usage.Memory, usage.DiskWritten, usage.EnergyRest, usage.EnergyError)}
	}
	steady := batch.Name{Kind: workload.Container, Name: "steady", Job: "steady", User: "bob"}
	dry := batch.Name{Kind: workload.Service, Name: "dry.service", Job: "dry"}
	system := batch.Name{Kind: workload.System, Name: "system"}
	for m := now - hardBegin; m < now-hardLatest; m++ {
		before := now - m
		if before <= outageAll && before > outageAll-10 {
			continue
		}
		covered := time.Minute
		if before == outageAll-10 {
			covered = 25 * time.Second // measured from its end on
			for _, n := range nodes {
				n.book()
			}
			f.Restart(t)
			for _, n := range nodes {
				n.l = f.Server.Ledger
				from := time.Unix((m-10)*60, 0)
				n.entry.Gaps = append(n.entry.Gaps, usage.Gap{From: from, To: from.Add(10*time.Minute + 35*time.Second), Reason: usage.Unwatched})
			}
		}
		seconds := int64(covered.Seconds())
		list := []bookedUse{{steady, covered, full(m, seconds*1e9+m)}, {system, covered, only(full(m+3, seconds*1e8), usage.CPU, usage.Memory, usage.EnergyPackage, usage.EnergyError)}}
		for i := range hardRuns {
			if at := now*60 - int64(i+5)*40; at/60 == m {
				list = append(list, run(i, m))
			}
		}
		switch before {
		case 7: // a single run of 0.1 s
			r := run(hardRuns, m)
			r.name.Name, r.name.Job = "short", "short"
			list = append(list, r)
		case 4: // one minute with all figures
			one := steady
			one.Name, one.Job = "one", "one"
			list = append(list, bookedUse{one, covered, full(m, 30e9+1)})
		}
		nodes[0].minute(m, covered, list...)
		nodes[1].minute(m, covered, bookedUse{dry, covered, only(full(m, seconds*2e9+m), usage.CPU, usage.Memory, usage.DiskWritten)}, bookedUse{system, covered, only(full(m, seconds*1e8), usage.CPU, usage.Memory)})
		if before > outageOne || before <= outageOne-7 {
			nodes[2].minute(m, covered, bookedUse{steady, covered, full(m+1, seconds*5e8+m)}, bookedUse{system, covered, only(full(m, seconds*2e8), usage.CPU, usage.Memory, usage.EnergyPackage)})
		}
	}
	from := time.Unix((now-outageOne)*60, 0)
	nodes[2].entry.Gaps = append(nodes[2].entry.Gaps, usage.Gap{From: from, To: from.Add(7 * time.Minute), Reason: usage.Rebooted})
	for _, n := range nodes {
		n.book()
	}
	if err := f.Server.Ledger.Fold(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	return f
}

// above returns a server above a fleet's, which has its ledger and no metrics.
func above(t *testing.T, f *fleet.Fleet) *fleet.Fleet {
	t.Helper()
	up := fleet.Open(t, fleet.Config{})
	src := replica.Source{ID: "below", Cluster: "edge"}
	m, err := up.Server.Ledger.StatesMark(t.Context(), src)
	for pages := 0; err == nil || errors.Is(err, fault.ErrConflict); pages++ {
		p, fail := f.Server.Ledger.States(t.Context(), m, replica.Offer{Finest: replica.Minute, Rows: 50_000})
		if fail != nil || pages > 1000 {
			t.Fatal(pages, fail)
		}
		if p.Empty() {
			return up
		}
		m, err = up.Server.Ledger.TakeStates(t.Context(), src, p, time.Now())
	}
	t.Fatal(err)
	return nil
}

// wideLedger books a job that runs on more than a thousand machines.
func wideLedger(t *testing.T) *fleet.Fleet {
	t.Helper()
	f := fleet.Open(t, fleet.Config{})
	now := time.Now().Unix() / 60
	for i := range 1010 {
		n := newBookedNode(t, f.Server.Ledger, i, fmt.Sprintf("rack%d-n%02d", i/8+1, i%8+1), true)
		for m := now - 16; m < now-hardLatest; m++ {
			n.minute(m, time.Minute, bookedUse{batch.Name{Kind: workload.Container, Name: "wide", Job: "wide", User: "cid"}, time.Minute, full(m+int64(i), 20e9+int64(i)*1e6+m%10)},
				bookedUse{batch.Name{Kind: workload.System, Name: "system"}, time.Minute, only(full(m, 1e9), usage.CPU, usage.Memory, usage.EnergyPackage)})
		}
		n.book()
	}
	return f
}
