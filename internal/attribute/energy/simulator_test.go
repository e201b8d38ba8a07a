package energy_test

import (
	"maps"
	"math"
	"math/rand/v2"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/othertools"
)

// slice is the time in ns in which the simulator keeps every load constant.
const slice = 20_000_000

// A model is the power model of a simulated machine: its active power in W at a load.
type model struct {
	name   string
	idle   float64
	active func(load float64) float64
	noise  float64 // of the power of a slice, relative standard deviation
	wrap   int64   // of the counter, uJ
	stall  func(second int) bool
	lost   bool // energy used during a stall is missing from the counter
	late   bool // the counter is late by up to a slice
	busy   bool // all loads start at once: never idle
}

// A behavior returns how many CPUs a workload wants in a slice, and whether its process is a new
// one.
type behavior func(s int) (cpus float64, fresh bool)

// A world is a machine with its loads and counters, and the true energies.
type world struct {
	model
	cpus      int
	loads     []behavior
	noise     *rand.Rand
	now       int       // slices
	energy    int64     // uJ of the machine, exact
	latest    int64     // uJ of the latest slice
	shown     int64     // by the counter, unwrapped
	missed    int64     // missing from the counter
	used      []int64   // CPU ns by workload
	truth     []float64 // active uJ by workload
	idle      float64   // uJ
	rest      float64
	pids      []int
	pid       int
	processes map[int]othertools.Process // nil if not recorded
}

// newWorld returns a machine with 20 changing loads.
func newWorld(m model, cpus int, seed uint64) *world {
	loads := mixed(cpus, seed)
	if !m.busy {
		loads = starting(loads)
	}
	return &world{model: m, cpus: cpus, loads: loads, noise: rand.New(rand.NewPCG(seed, 1)),
		used: make([]int64, len(loads)), truth: make([]float64, len(loads)), pids: make([]int, len(loads))}
}

// step advances by a slice. If loads want more CPUs than exist they share them fairly.
func (w *world) step() {
	want := make([]float64, len(w.loads))
	sum := 0.0
	for i, b := range w.loads {
		cpus, fresh := b(w.now)
		if w.processes != nil && cpus > 0 && (fresh || w.pids[i] == 0) {
			delete(w.processes, w.pids[i])
			w.pid++
			w.pids[i] = w.pid
		}
		if cpus == 0 && fresh {
			delete(w.processes, w.pids[i])
			w.pids[i] = 0
		}
		want[i] = cpus
		sum += cpus
	}
	scale := min(1, float64(w.cpus)/max(sum, 1e-9))
	load := min(1, sum/float64(w.cpus))
	active := w.active(load)
	drawn := max(0, (w.model.idle+active)*(1+w.model.noise*w.noise.NormFloat64()))
	idle := min(drawn, w.model.idle)
	active = drawn - idle
	if sum == 0 {
		idle, active = drawn, 0
	}
	const seconds = slice / 1e9
	w.idle += idle * 1e6 * seconds
	for i, c := range want {
		if c == 0 {
			continue
		}
		w.used[i] += int64(c * scale * slice)
		w.truth[i] += active * 1e6 * seconds * c / sum
		if p := w.processes; p != nil {
			p[w.pids[i]] = othertools.Process{Workload: i, CPU: p[w.pids[i]].CPU + int64(c*scale*slice)}
		}
	}
	w.rest += drawn * 1e6 * seconds
	w.latest = int64(w.rest) - w.energy
	w.energy = int64(w.rest)
	second := w.now / 50
	switch {
	case w.stall == nil || !w.stall(second):
		w.shown = w.energy - w.missed
	case w.lost:
		w.missed = w.energy - w.shown
	}
	w.now++
}

func (w *world) nanoseconds() int64 { return int64(w.now) * slice }

// read returns the meter's reading.
func (w *world) read() []power.Reading {
	v := w.shown
	if w.late && w.now > 0 {
		v -= int64(w.noise.Float64() * float64(w.latest))
	}
	if w.wrap > 0 {
		v %= w.wrap
	}
	return []power.Reading{{Meter: 0, At: w.nanoseconds(), Value: v}}
}

func (w *world) scan() *othertools.Scan {
	s := &othertools.Scan{Energy: w.shown, Used: sum(w.used), Whole: int64(w.cpus) * w.nanoseconds(), Processes: map[int]othertools.Process{}}
	maps.Copy(s.Processes, w.processes)
	return s
}

// mixed returns 20 loads: steady ones, ones that change by seconds, bursts of 200 ms, and chains of
// processes of 40 ms.
func mixed(cpus int, seed uint64) (loads []behavior) {
	r := rand.New(rand.NewPCG(seed, 2))
	big := float64(cpus) / 8
	for i := range 20 {
		size := big * (.2 + .8*r.Float64())
		phase := r.IntN(1000)
		period := 100 + r.IntN(900)
		switch i % 4 {
		case 0: // steady, with a new level every few seconds
			levels := make([]float64, 64)
			for j := range levels {
				levels[j] = size * r.Float64() * .6
			}
			loads = append(loads, func(s int) (float64, bool) { return levels[(s+phase)/period%len(levels)], false })
		case 1: // on and off
			loads = append(loads, func(s int) (float64, bool) {
				if (s+phase)%period < period/3 {
					return size, false
				}
				return 0, false
			})
		case 2: // spikes of 200 ms, one thread each
			gap := 40 + r.IntN(200)
			loads = append(loads, func(s int) (float64, bool) {
				if (s+phase)%gap < 10 {
					return max(1, size), false
				}
				return 0, false
			})
		default: // sequential processes of 40 ms with pauses
			rest := 2 * (1 + r.IntN(4))
			loads = append(loads, func(s int) (float64, bool) {
				at := (s + phase) % (2 + rest)
				if at < 2 {
					return min(1, 2*size), at == 0
				}
				return 0, at == 2
			})
		}
	}
	return loads
}

// starting delays the first load by two seconds, and each other load by half a second more than the
// previous one.
func starting(loads []behavior) (later []behavior) {
	for i, b := range loads {
		from := 100 + 25*i
		later = append(later, func(s int) (float64, bool) {
			if s < from {
				return 0, false
			}
			return b(s)
		})
	}
	return later
}

func linear(k float64) func(float64) float64 { return func(u float64) float64 { return k * u } }

func concave(k, p float64) func(float64) float64 {
	return func(u float64) float64 { return k * math.Pow(u, p) }
}
