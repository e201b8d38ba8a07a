// Package exposition writes metrics in Prometheus's text format, version 0.0.4: those of
// programs, and those of workloads and their machine from closed windows, under the names
// of mete and of Kepler.
//
// An [Accumulator] adds each closed window and returns an immutable [View], so that scrapes
// do not delay measuring.
package exposition

import (
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Ended workloads are exposed for endedRetention, so that a scrape every minute sees their
// final values; at most the latest maxEnded of them.
const (
	endedRetention = 2 * time.Minute
	maxEnded       = 1000
)

// exposedResources are the resources of workloads that are exposed.
var exposedResources = [...]usage.Resource{usage.CPU, usage.Memory, usage.EnergyPackage, usage.EnergyDRAM, usage.EnergyGPU, usage.EnergyRest, usage.EnergyError, usage.EnergyIdle}

// An Accumulator sums windows. Its zero value is ready. It is not safe for concurrent use.
type Accumulator struct {
	// Name returns the name of a workload as its maker gave it, or else its name in
	// windows. Nil means the names in windows.
	Name func(*workload.Workload) string

	totals   totals
	previous map[workload.ID]usage.Set // resources of each workload of the previous window
	ended    []row                     // recently ended workloads, in order of their end
	pods     map[workload.ID]*pod
}

// A View is a machine and its workloads at the end of a window. It is immutable and safe for
// concurrent use.
type View struct {
	host    string
	length  float64 // of the window, s
	cpus    share   // of the machine's CPU time in the window
	totals  totals
	domains [power.DomainLimit]domain
	meters  []energy.State
	rows    []row // live workloads, then recently ended ones
	pods    []pod
}

// totals are the sums over all windows of the Accumulator.
type totals struct {
	cpu, memory int64 // capacity, ns and byte-seconds
	// measured and modelled are the whole energy of each domain, uJ.
	measured, modelled [power.DomainLimit]int64
	idle               [power.DomainLimit]int64 // uJ, part of both
	error              int64                    // uJ
}

// share is an amount of the machine and its idle part.
type share struct{ whole, idle int64 }

// A domain is a part of the machine in the window.
type domain struct {
	quality   usage.Quality
	used      share // uJ
	idle, off int64 // idle power and its error, learned or configured, uW
	known     bool  // idle and off are known
}

// A row is one workload.
type row struct {
	usage.Set
	workload workload.Workload
	parent   workload.ID
	uid      string        // of the Kubernetes pod that it is or belongs to
	quality  usage.Quality // worst quality of its energy
	ended    int64         // end of its last window, ns of boottime; 0 while it lives
	total    [len(exposedResources)]int64
	used     [power.DomainLimit]int64 // uJ in the window
	guest    string                   // UUID of a virtual machine, or ""
	name     string                   // of the virtual machine
}

// A pod is a Kubernetes pod with all its containers, including ended ones.
type pod struct {
	uid   string
	seen  int64                    // end of the last window with the pod, ns of boottime
	total [power.DomainLimit]int64 // uJ since its first window
	used  [power.DomainLimit]int64 // uJ in the window
	has   [power.DomainLimit]bool
}

// Add adds a closed window of a host and returns the view of it. m are the energy meters, or
// nil. Add does not keep w.
func (a *Accumulator) Add(host string, w *usage.Window, m *energy.Meters) *View {
	v := &View{host: host, length: w.Length().Seconds(), rows: make([]row, 0, len(w.Rows))}
	at := map[workload.ID]int{}
	had := make(map[workload.ID]usage.Set, len(w.Rows))
	for i := range w.Rows {
		r := &w.Rows[i]
		a.totals.error += r.Usage.Amount[usage.EnergyError]
		n := newRow(r, w.End)
		n.Set |= a.previous[r.Workload.ID] // an idle counter stays exposed
		had[r.Workload.ID] = n.Set
		if a.Name != nil {
			n.workload.Name = a.Name(&n.workload)
		}
		// A restarted workload has a row for each life; the last one is the live one.
		if k, twice := at[r.Workload.ID]; twice {
			n.addUse(&v.rows[k])
			v.rows[k] = n
			continue
		}
		at[r.Workload.ID] = len(v.rows)
		v.rows = append(v.rows, n)
	}
	a.previous = had
	for i := range w.Handovers {
		h := &w.Handovers[i]
		if k, ok := at[h.Workload]; ok {
			v.rows[k].guest, v.rows[k].name = h.Guest, h.Name
		}
	}
	a.addMachine(v, w, m)
	a.addPods(v, w, at)
	a.keepEnded(v, w.End, at)
	v.totals = a.totals
	return v
}

func newRow(r *usage.Row, end int64) row {
	n := row{Set: r.Usage.Present, workload: r.Workload.Workload, parent: r.Workload.Parent}
	if r.Ended {
		n.ended = end
	}
	for i, res := range exposedResources {
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

// addUse adds the energy of another life of the workload in the window.
func (r *row) addUse(o *row) {
	for d := range r.used {
		r.used[d] += o.used[d]
	}
	r.quality = max(r.quality, o.quality)
}

// addMachine adds the use of the machine.
func (a *Accumulator) addMachine(v *View, w *usage.Window, m *energy.Meters) {
	b := &w.Balance
	v.cpus = share{b.Whole.Get(usage.CPU), b.Idle.Get(usage.CPU)}
	a.totals.cpu += v.cpus.whole
	a.totals.memory += b.Whole.Get(usage.Memory)
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
			continue // absent, not zero
		}
		// The parts are apportioned, but the whole is measured or modelled.
		at.quality = usage.Measured
		at.used = share{b.Whole.Get(res), b.Idle.Get(res)}
		a.totals.idle[d] += at.used.idle
		if idle.Usage.Quality.Get(res) == usage.Modelled {
			at.quality = usage.Modelled
			a.totals.modelled[d] += at.used.whole
		} else {
			a.totals.measured[d] += at.used.whole
		}
	}
}

// keepEnded adds the recently ended workloads that were not restarted to v, and remembers
// them for later windows.
func (a *Accumulator) keepEnded(v *View, now int64, at map[workload.ID]int) {
	kept := a.ended[:0]
	for _, r := range a.ended {
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
	a.ended = kept[max(0, len(kept)-maxEnded):]
	// In later windows an ended workload uses nothing.
	for i := range a.ended {
		a.ended[i].used = [power.DomainLimit]int64{}
	}
}

// addPods adds the energy of each pod and its containers to the pod.
func (a *Accumulator) addPods(v *View, w *usage.Window, at map[workload.ID]int) {
	if a.pods == nil {
		a.pods = map[workload.ID]*pod{}
	}
	for _, p := range a.pods {
		p.used = [power.DomainLimit]int64{}
	}
	for i := range w.Rows {
		r := &w.Rows[i]
		up := v.podOf(r.Workload.ID, at)
		if up == nil {
			continue
		}
		p := a.pods[up.workload.ID]
		if p == nil {
			p = &pod{uid: up.workload.Key}
			a.pods[up.workload.ID] = p
		}
		p.seen = w.End
		if !strings.Contains(p.uid, "/") { // else a group that another user than root made: its path
			v.rows[at[r.Workload.ID]].uid = p.uid
		}
		for d := power.Package; d < power.DomainLimit; d++ {
			if res := usage.EnergyOf(d); r.Usage.Present.Has(res) {
				p.has[d] = true
				p.used[d] += r.Usage.Amount[res]
				p.total[d] += r.Usage.Amount[res]
			}
		}
	}
	for id, p := range a.pods {
		if w.End-p.seen >= int64(endedRetention) {
			delete(a.pods, id)
			continue
		}
		v.pods = append(v.pods, *p)
	}
}

// podOf returns the Kubernetes pod that a workload is or belongs to, or nil.
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

// maxDepth limits the number of ancestors that podOf visits.
const maxDepth = 16

// runtimeOf returns the runtime that created a workload's group, or "" if its path does not
// tell.
func runtimeOf(w *workload.Workload) string {
	n, _ := workload.Recognize(w.Path)
	return n.Runtime
}
