// Package exposition writes metrics in Prometheus's text format, version 0.0.4:
// of programs themselves, and closed windows as metrics of workloads and of the
// machine that they ran on, under mete's names and under Kepler's.
//
// An [Accumulator] takes each window as it closes, and makes a [View] of it, which does
// not change: scrapes read the View and do not delay measuring.
package exposition

import (
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Workloads that ended are shown for a while, so that who asks every minute sees
// what each used last: for lingers, and the latest maxEnded of them.
const (
	endedRetention = 2 * time.Minute
	maxEnded       = 1000
)

// shownResources are the resources of workloads that are shown.
var shownResources = [...]usage.Resource{usage.CPU, usage.Memory, usage.EnergyPackage, usage.EnergyDRAM, usage.EnergyGPU, usage.EnergyRest, usage.EnergyError, usage.EnergyIdle}

// An Accumulator sums up what windows say. Its zero value has seen none. Not for
// concurrent use.
type Accumulator struct {
	// Name is what a workload is called, where its maker said it, and else what it is
	// called in windows; nil is what it is called in windows.
	Name func(*workload.Workload) string

	totals   totals
	previous map[workload.ID]usage.Set // what each of the window before has used
	ended    []row                     // ended, in the order in which they did
	pods     map[workload.ID]*pod
}

// A View is a machine and its workloads at the end of a window. It does not
// change, and any number of goroutines may read it.
type View struct {
	host    string
	length  float64 // of the window, s
	cpus    share   // of the machine's CPU time in the window
	totals  totals
	domains [power.DomainLimit]domain
	meters  []energy.State
	rows    []row // living, then those that ended lately
	pods    []pod
}

// totals are what the machine used since the Accumulator began.
type totals struct {
	cpu, memory int64 // whole, ns and byte-seconds
	// joules is the whole energy of each domain, uJ: what meters showed, and what
	// was modelled.
	measured, modelled [power.DomainLimit]int64
	idle               [power.DomainLimit]int64 // uJ, of both
	error              int64                    // uJ
}

// share is a whole and what of it nobody used.
type share struct{ whole, idle int64 }

// A domain is a part of the machine in the window.
type domain struct {
	quality   usage.Quality
	used      share // uJ
	idle, off int64 // uW that it draws when idle, learned or given, and how sure that is
	known     bool  // idle is
}

// A row is one workload.
type row struct {
	usage.Set
	workload workload.Workload
	parent   workload.ID
	quality  usage.Quality // of its energy, the worst
	ended    int64         // the end of the window in which it did, ns of boottime; 0: it lives
	total    [len(shownResources)]int64
	used     [power.DomainLimit]int64 // uJ in the window
	guest    string                   // UUID of the virtual machine that it is; "" is none
	name     string                   // of that
}

// A pod is one of Kubernetes with its containers, those that ended too.
type pod struct {
	uid   string
	seen  int64                    // window in which it was seen last, ns of boottime
	total [power.DomainLimit]int64 // uJ since the Accumulator saw it first
	used  [power.DomainLimit]int64 // uJ in the window
	has   [power.DomainLimit]bool
}

// Add takes a window that was closed, of the node that goes by the name of its
// host, and what is known of its meters; nil is nothing. The window stays
// the caller's.
func (t *Accumulator) Add(host string, w *usage.Window, m *energy.Meters) *View {
	v := &View{host: host, length: w.Length().Seconds(), rows: make([]row, 0, len(w.Rows))}
	at := map[workload.ID]int{}
	had := make(map[workload.ID]usage.Set, len(w.Rows))
	for i := range w.Rows {
		r := &w.Rows[i]
		t.totals.error += r.Usage.Amount[usage.EnergyError]
		n := newRow(r, w.End)
		n.Set |= t.previous[r.Workload.ID] // a counter that stands still does not vanish
		had[r.Workload.ID] = n.Set
		if t.Name != nil {
			n.workload.Name = t.Name(&n.workload)
		}
		// One that began anew has a row for each life; the one that lives counts.
		if k, twice := at[r.Workload.ID]; twice {
			v.rows[k] = n
			continue
		}
		at[r.Workload.ID] = len(v.rows)
		v.rows = append(v.rows, n)
	}
	t.previous = had
	for i := range w.Handovers {
		h := &w.Handovers[i]
		if k, ok := at[h.Workload]; ok {
			v.rows[k].guest, v.rows[k].name = h.Guest, h.Name
		}
	}
	t.addMachine(v, w, m)
	t.addPods(v, w, at)
	t.keepEnded(v, w.End, at)
	v.totals = t.totals
	return v
}

func newRow(r *usage.Row, end int64) row {
	n := row{Set: r.Usage.Present, workload: r.Workload.Workload, parent: r.Workload.Parent}
	if r.Ended {
		n.ended = end
	}
	for i, res := range shownResources {
		if n.total[i] = r.Total[res]; r.Total[res] != 0 {
			n.Set |= usage.SetOf(res)
		}
	}
	for d := power.Package; d < power.DomainLimit; d++ {
		if res := usage.EnergyOf(d); r.Usage.Present.Has(res) {
			n.used[d] = r.Usage.Amount[res]
			n.quality = max(n.quality, r.Usage.Quality.Get(res))
		}
	}
	return n
}

// addMachine adds up what the machine used.
func (t *Accumulator) addMachine(v *View, w *usage.Window, m *energy.Meters) {
	b := &w.Balance
	v.cpus = share{b.Whole.Get(usage.CPU), b.Idle.Get(usage.CPU)}
	t.totals.cpu += v.cpus.whole
	t.totals.memory += b.Whole.Get(usage.Memory)
	var idle *usage.Row
	for i := range w.Rows {
		if w.Rows[i].Workload.Kind == workload.Idle {
			idle = &w.Rows[i]
		}
	}
	if m != nil {
		v.meters = m.States()
	}
	for d := power.Package; d < power.DomainLimit; d++ {
		res, at := usage.EnergyOf(d), &v.domains[d]
		if m != nil {
			at.idle, at.off, at.known = m.IdlePower(d)
		}
		if idle == nil || !idle.Usage.Present.Has(res) {
			continue // absent, which is not zero
		}
		// Its parts are apportioned; all of it is what meters showed, or a model.
		at.quality = usage.Measured
		at.used = share{b.Whole.Get(res), b.Idle.Get(res)}
		t.totals.idle[d] += at.used.idle
		if idle.Usage.Quality.Get(res) == usage.Modelled {
			at.quality = usage.Modelled
			t.totals.modelled[d] += at.used.whole
		} else {
			t.totals.measured[d] += at.used.whole
		}
	}
}

// keepEnded takes along those that ended lately and were not made anew.
func (t *Accumulator) keepEnded(v *View, now int64, at map[workload.ID]int) {
	kept := t.ended[:0]
	for _, r := range t.ended {
		if _, lives := at[r.workload.ID]; !lives && now-r.ended < int64(endedRetention) {
			kept = append(kept, r)
		}
	}
	kept = kept[max(0, len(kept)-maxEnded):]
	living := v.rows[:0]
	var ended []row
	for _, r := range v.rows {
		if r.ended != 0 {
			ended = append(ended, r)
			continue
		}
		living = append(living, r)
	}
	v.rows = append(append(living, kept...), ended...)
	kept = append(kept, ended...)
	t.ended = kept[max(0, len(kept)-maxEnded):]
	// What it drew is of the window in which it ended.
	for i := range t.ended {
		t.ended[i].used = [power.DomainLimit]int64{}
	}
}

// addPods books to each pod what it and its containers used.
func (t *Accumulator) addPods(v *View, w *usage.Window, at map[workload.ID]int) {
	if t.pods == nil {
		t.pods = map[workload.ID]*pod{}
	}
	for _, p := range t.pods {
		p.used = [power.DomainLimit]int64{}
	}
	for i := range w.Rows {
		r := &w.Rows[i]
		up := v.podOf(r.Workload.ID, at)
		if up == nil {
			continue
		}
		p := t.pods[up.workload.ID]
		if p == nil {
			p = &pod{uid: up.workload.Key}
			t.pods[up.workload.ID] = p
		}
		p.seen = w.End
		for d := power.Package; d < power.DomainLimit; d++ {
			if res := usage.EnergyOf(d); r.Usage.Present.Has(res) {
				p.has[d] = true
				p.used[d] += r.Usage.Amount[res]
				p.total[d] += r.Usage.Amount[res]
			}
		}
	}
	for id, p := range t.pods {
		if w.End-p.seen >= int64(endedRetention) {
			delete(t.pods, id)
			continue
		}
		v.pods = append(v.pods, *p)
	}
}

// podOf returns the pod of Kubernetes that a workload is or is in; nil is none.
func (v *View) podOf(id workload.ID, at map[workload.ID]int) *row {
	for range maxDepth {
		i, ok := at[id]
		if !ok {
			return nil
		}
		r := &v.rows[i]
		if r.workload.Kind == workload.Pod && runtimeOf(&r.workload) == "kubernetes" {
			return r
		}
		id = r.parent
	}
	return nil
}

// maxDepth is how many workloads are looked through for the pod above one.
const maxDepth = 16

// runtimeOf is what made a workload's group; "" where its path does not tell.
func runtimeOf(w *workload.Workload) string {
	n, _ := workload.Recognize(w.Path)
	return n.Runtime
}
