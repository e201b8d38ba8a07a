package fleet

import (
	"fmt"
	"math"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// classes are those of the traffic of a fleet, each a part of what is received and sent. Their sum is less than all of it.
var classes = []struct {
	class  usage.NetworkClass
	rx, tx int64
}{{usage.ClassNode, 8, 4}, {usage.ClassZone, 4, 8}, {usage.ClassInternet, 2, 3}}

// unclassified is which of four workloads has no traffic of a class.
const unclassified = 3

// A machine generates the windows of one node.
type machine struct {
	Config
	node, name string
	seed, cpus int
	names      []batch.Name
	totals     [][usage.Limit]int64
}

func newMachine(c Config, i int) *machine {
	return &machine{Config: c, node: fmt.Sprintf("01J0000000000000000000%04d", i), name: fmt.Sprintf("rack%d-n%02d", i/8+1, i%8+1), seed: i, cpus: 16 + 16*(i%3)}
}

// clusterOf is the cluster of the i-th machine.
func clusterOf(i int) string { return []string{"north", "south"}[i%2] }

func (m *machine) fill() {
	add := func(kind workload.Kind, key, name string, labels map[string]string) {
		m.names = append(m.names, batch.Name{ID: workload.NewID(m.node, kind, key), Kind: kind, Key: key, Name: name, Labels: labels, Started: time.Now().Add(-m.Ago - time.Hour)})
	}
	jobs := []string{"checkout", "search-index", "ml-train", "postgres-main", "kafka", "web-frontend", "etl-nightly", "grafana"}
	spaces := []string{"shop", "data", "platform"}
	for i := range m.Each {
		job, space := jobs[(i+m.seed)%len(jobs)], spaces[(i+m.seed)%len(spaces)]
		if i == 0 && m.seed < len(HostileNames) && !m.Tame {
			job = HostileNames[m.seed]
		}
		if m.Nodes > 100 && i >= len(jobs) {
			job = fmt.Sprintf("%s-%d", job, (m.seed*m.Each+i)%2000) // a large fleet has more jobs
		}
		pod := fmt.Sprintf("%s-%d", job, i)
		name := job
		if m.Reserved {
			name = pod + "/main" // as the server names those of pods
		}
		add(workload.Container, fmt.Sprint(i), name, map[string]string{"io.kubernetes.pod.namespace": space, "io.kubernetes.pod.name": pod, "io.kubernetes.container.name": "main", "app": job})
		if m.names[len(m.names)-1].Job = job; !m.Reserved {
			m.names[len(m.names)-1].User = []string{"ada", "grace", "edsger"}[i%3]
		}
	}
	add(workload.System, "", "system", nil)
	add(workload.Idle, "", "idle", nil)
	m.totals = make([][usage.Limit]int64, len(m.names))
}

// batches offers all windows up to end, several in each batch, as if sent now.
func (m *machine) batches(end, now time.Time, offer func([]byte, batch.Clock) error) error {
	const per = 6
	boot := int64(m.Windows+10) * m.Window.Nanoseconds()
	b := batch.Batch{Stream: batch.Stream{byte(m.seed), byte(m.seed >> 8), 1}, Names: m.names}
	for i := range m.Windows {
		at := boot - int64(m.Windows-i)*m.Window.Nanoseconds()
		w := m.window(i, at, end.UnixNano()-boot)
		b.Windows = append(b.Windows, wire.Prepare(w))
		if len(b.Windows) < per && i < m.Windows-1 {
			continue
		}
		b.Number++
		sent, err := wire.Encode(nil, &b)
		if err != nil {
			return err
		}
		if err := offer(sent, batch.Clock{Boot: m.name, Boottime: boot + now.Sub(end).Nanoseconds(), Wall: now.UnixNano()}); err != nil {
			return err
		}
		b.Previous, b.Names, b.Windows = batch.HashOf(sent), nil, nil
	}
	return nil
}

// window returns the i-th window, whose rows sum to the capacity.
func (m *machine) window(i int, at, offset int64) *usage.Window {
	length := m.Window.Nanoseconds()
	seconds := length / 1e9
	w := &usage.Window{Boot: m.name, Start: at, End: at + length, Offset: offset, CPUs: m.cpus}
	whole := usage.Shares{int64(m.cpus) * length, seconds * 128 << 30, 0, 0, 0, 0, int64(m.cpus) * seconds * 6e6}
	left := whole
	for n := range m.names {
		name := &m.names[n]
		r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: name.ID, Kind: name.Kind, Key: name.Key, Name: name.Name}})
		r.Total = m.totals[n]
		wave := 1 + math.Sin(float64(i)/(9+float64(n%7))+float64(m.seed+3*n))
		used := [3]int64{int64(wave * 0.22 * float64(whole[0]) / float64(len(m.names))), int64((0.3 + 0.05*wave) * float64(whole[1]) / float64(len(m.names))), int64(wave * 0.25 * float64(whole[6]) / float64(len(m.names)))}
		share, of := &w.Balance.Workloads, [3]int{0, 1, 6}
		switch name.Kind {
		case workload.Idle:
			share, used = &w.Balance.Idle, [3]int64{left[0], left[1], left[6]}
		case workload.System:
			share = &w.Balance.System
		}
		for k, res := range [3]usage.Resource{usage.CPU, usage.Memory, usage.EnergyPackage} {
			m.put(&r, n, res, used[k])
			share[of[k]] += used[k]
			left[of[k]] -= used[k]
		}
		m.put(&r, n, usage.EnergyError, used[2]/20)
		if name.Kind != workload.Idle && name.Kind != workload.System {
			m.putPeak(&r, n, usage.MemoryPeak, used[1]/seconds*5/4)
		}
		if name.Kind == workload.Container {
			rate := float64(seconds) / 10
			rx, tx := int64(wave*2e6*rate), int64(wave*1e6*rate)
			m.put(&r, n, usage.NetworkRx, rx)
			m.put(&r, n, usage.NetworkTx, tx)
			if m.Classes && n%4 != unclassified {
				for _, c := range classes {
					m.put(&r, n, c.class.Rx(), rx/c.rx)
					m.put(&r, n, c.class.Tx(), tx/c.tx)
				}
			}
			for k, res := range [2]usage.Resource{usage.DiskRead, usage.DiskWritten} {
				v := int64(wave * rate * float64(4e5*(k+1)))
				m.put(&r, n, res, v)
				whole[2+k] += v
				share[2+k] += v
			}
			m.put(&r, n, usage.CPUUser, used[0]*3/4)
			m.put(&r, n, usage.CPUSystem, used[0]-used[0]*3/4)
		}
		r.Usage.Covered = m.Window
		w.Rows = append(w.Rows, r)
	}
	w.Balance.Whole = whole
	w.Total.Put(usage.DiskRead, whole[2], usage.Measured)
	w.Total.Put(usage.DiskWritten, whole[3], usage.Measured)
	w.Total.Put(usage.NetworkRx, int64(len(m.names))*seconds*3e5, usage.Measured)
	w.Total.Put(usage.NetworkTx, int64(len(m.names))*seconds*2e5, usage.Measured)
	return w
}

// putPeak sets a figure of which the highest value stays.
func (m *machine) putPeak(r *usage.Row, n int, res usage.Resource, v int64) {
	r.Usage.Put(res, v, usage.Measured)
	m.totals[n][res] = max(m.totals[n][res], v)
	r.Total[res] = m.totals[n][res]
	r.Has |= usage.SetOf(res)
}

func (m *machine) put(r *usage.Row, n int, res usage.Resource, v int64) {
	q := usage.Measured
	if res >= usage.EnergyPackage && !usage.Apart.Has(res) {
		q = usage.Apportioned
	}
	r.Usage.Put(res, v, q)
	m.totals[n][res] += v
	r.Total[res] = m.totals[n][res]
	r.Has |= usage.SetOf(res)
}
