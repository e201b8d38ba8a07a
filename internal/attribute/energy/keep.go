package energy

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
)

// keptVersion is the version of what Keep writes.
const keptVersion = 1

// A kept is what was learned of a machine, as it is written down.
type kept struct {
	Version int         `json:"version"`
	Machine string      `json:"machine"`
	Meters  []keptMeter `json:"meters"`
	Domains []keptLaw   `json:"domains"` // by domain; the first is none
}

type keptMeter struct {
	Meter   power.Meter `json:"meter"`
	Highest int64       `json:"highest_uw"`
	Law     keptLaw     `json:"law"`
}

// A keptLaw holds for each bin that is not empty: its index, points, load in
// ppm, power in uW, and the standard deviation of the power in uW.
type keptLaw [][5]int64

// Keep writes down what was learned, with the name of the machine that it holds
// for: a CPU's model and how many there are, say. That is a few kB of JSON, which
// is worth keeping every some minutes: losing it costs no energy, only sharpness.
func (m *Meters) Keep(machine string) []byte {
	k := kept{Version: keptVersion, Machine: machine, Domains: make([]keptLaw, power.DomainLimit)}
	for i := range m.gauges {
		if g := &m.gauges[i]; g.law.Known() {
			k.Meters = append(k.Meters, keptMeter{g.Meter, g.highest, g.law.keep()})
		}
	}
	for d := range m.laws {
		k.Domains[d] = m.laws[d].keep()
	}
	b, err := json.Marshal(k)
	if err != nil {
		panic("energy: " + err.Error()) // it is integers and texts
	}
	return b
}

// Restore takes over what Keep wrote, before the first tick. A meter that is not
// among those that are read counts as Gone: what was learned of it stands in for
// it. The error wraps fault.ErrInvalid where b is nothing that Keep wrote, and
// fault.ErrConflict where it is of another machine; then nothing was taken over.
func (m *Meters) Restore(machine string, b []byte) error {
	var k kept
	if err := json.Unmarshal(b, &k); err != nil {
		return fmt.Errorf("power laws: %v: %w", err, fault.ErrInvalid)
	}
	if k.Version != keptVersion {
		return fmt.Errorf("power laws: version %d: %w", k.Version, fault.ErrInvalid)
	}
	if k.Machine != machine {
		return fmt.Errorf("power laws: of %q, not of %q: %w", k.Machine, machine, fault.ErrConflict)
	}
	var gauges []gauge
	var laws [power.DomainLimit]Law
	for i := range k.Meters {
		g := gauge{Meter: k.Meters[i].Meter, highest: k.Meters[i].Highest}
		if !g.valid() || g.highest < 0 || !g.law.restore(k.Meters[i].Law) {
			return fmt.Errorf("power laws: meter %q: %w", g.Name, fault.ErrInvalid)
		}
		gauges = append(gauges, g)
	}
	for d := range laws {
		if d < len(k.Domains) && !laws[d].restore(k.Domains[d]) {
			return fmt.Errorf("power laws: domain %d: %w", d, fault.ErrInvalid)
		}
	}
	for _, g := range gauges {
		i := slices.IndexFunc(m.gauges, func(h gauge) bool { return h.Name == g.Name })
		switch {
		case i < 0:
			m.gauges = append(m.gauges, g)
		case m.gauges[i].Level == g.Level && m.gauges[i].Domain == g.Domain:
			m.gauges[i].law, m.gauges[i].highest = g.law, g.highest
		}
	}
	m.laws = laws
	return nil
}

// valid says whether a meter's numbers are such as there are.
func (g *gauge) valid() bool {
	return g.Level > 0 && g.Level < power.LevelLimit && g.Domain > 0 && g.Domain < power.DomainLimit &&
		(g.Kind == power.Energy || g.Kind == power.Power) && g.From > 0 && g.From < power.OriginLimit &&
		g.Wrap >= 0 && g.Step >= 0 && g.Every >= 0 && g.ErrorPPM >= 0 && g.Most >= 0
}

func (l *Law) keep() (k keptLaw) {
	for i := range l.bins {
		if b := &l.bins[i]; b.weight > 0 {
			k = append(k, [5]int64{int64(i), rounded(b.weight), rounded(b.load * power.PPM), rounded(b.power), rounded(math.Sqrt(b.powers))})
		}
	}
	return k
}

func (l *Law) restore(k keptLaw) bool {
	for _, v := range k {
		if slices.Min(v[:]) < 0 || v[0] >= int64(len(l.bins)) || v[1] == 0 || v[1] > binMemory || v[2] > power.PPM {
			return false
		}
		deviation := float64(v[4])
		l.bins[v[0]] = bin{weight: float64(v[1]), load: fraction(v[2]), power: float64(v[3]), powers: deviation * deviation}
		l.seen += int(v[1])
	}
	return true
}

// A Position is up to where a counter is booked.
type Position struct {
	Meter   string
	At      int64 // ns of CLOCK_BOOTTIME
	Value   int64 // uJ
	Half    int64 // uJ by which Value may be off
	Ahead   int64 // uJ that was booked beyond it
	Highest int64 // uW that it showed at most
	// Given is, of what a host gives, the share that Value was taken from, and Booked
	// what was booked up to it; without an epoch of all else.
	Given, Booked power.Share
}

// Positions returns up to where each counter is booked. They belong into the
// record that says what is booked: with one but not the other, energy is booked
// twice or not at all.
func (m *Meters) Positions() (ps []Position) {
	for i := range m.gauges {
		if g := &m.gauges[i]; g.seen && g.Kind == power.Energy {
			p := Position{Meter: g.Name, At: g.at, Value: g.value, Half: g.half, Ahead: g.ahead, Highest: g.highest}
			if g.host != nil {
				p.Given, p.Booked = g.host.given, g.host.booked
			}
			ps = append(ps, p)
		}
	}
	return ps
}

// Resume goes on from positions of the same boot, before the first tick: what
// counters gained since is booked in it. Its Span begins where the last tick
// before ended. Names that are not known, and values that cannot be, are left out.
func (m *Meters) Resume(ps []Position) {
	for _, p := range ps {
		i := slices.IndexFunc(m.gauges, func(g gauge) bool { return g.Name == p.Meter })
		if i < 0 || m.gauges[i].Kind != power.Energy || min(p.At, p.Value, p.Half, p.Ahead, p.Highest) < 0 {
			continue
		}
		g := &m.gauges[i]
		g.seen, g.at, g.moved, g.value, g.half, g.ahead = true, p.At, p.At, p.Value, p.Half, p.Ahead
		g.highest = max(g.highest, p.Highest)
		if g.host != nil && sound(&p.Given) && sound(&p.Booked) {
			g.host.given, g.host.booked, g.host.opened = p.Given, p.Booked, p.Booked
			g.host.quality = usage.Apportioned
		}
	}
}
