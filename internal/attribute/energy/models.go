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

// savedVersion is the format version of EncodeModels.
const savedVersion = 1

// savedModels is the JSON form of what was learned of a machine.
type savedModels struct {
	Version int          `json:"version"`
	Machine string       `json:"machine"`
	Meters  []savedMeter `json:"meters"`
	Domains []savedModel `json:"domains"` // by domain; index 0 is unused
}

type savedMeter struct {
	Meter   power.Meter `json:"meter"`
	Highest int64       `json:"highest_uw"`
	Absent  int64       `json:"absent_minutes,omitempty"`
	Model   savedModel  `json:"law"`
}

// A savedModel holds for each non-empty bin: index, points, load in ppm, power in uW, and standard
// deviation of the power in uW.
type savedModel [][5]int64

// EncodeModels encodes what was learned, with the name of the machine that it applies to, such as
// CPU model and count. It is a few kB of JSON, to be saved every few minutes: losing it costs
// accuracy but no energy.
func (m *Meters) EncodeModels(machine string) []byte {
	k := savedModels{Version: savedVersion, Machine: machine, Domains: make([]savedModel, power.DomainLimit)}
	for i := range m.meters {
		if ms := &m.meters[i]; ms.model.IsTrained() {
			k.Meters = append(k.Meters, savedMeter{ms.Meter, ms.peakPower, ms.absent / minute, ms.model.encode()})
		}
	}
	for d := range m.domainModels {
		k.Domains[d] = m.domainModels[d].encode()
	}
	b, _ := json.Marshal(k) // only integers and texts
	return b
}

// RestoreModels takes over what EncodeModels wrote, before the first tick. A meter that is not
// configured counts as Unreadable, and its model substitutes for it for a day of ticks, unless a
// meter of its kind that is not among the saved ones replaces it. The error wraps fault.ErrInvalid
// if b is malformed, and fault.ErrConflict if it is of another machine; then nothing is taken over.
func (m *Meters) RestoreModels(machine string, b []byte) error {
	var k savedModels
	if err := json.Unmarshal(b, &k); err != nil {
		return fmt.Errorf("power models: %v: %w", err, fault.ErrInvalid)
	}
	if k.Version != savedVersion {
		return fmt.Errorf("power models: version %d: %w", k.Version, fault.ErrInvalid)
	}
	if k.Machine != machine {
		return fmt.Errorf("power models: of machine %q, not %q: %w", k.Machine, machine, fault.ErrConflict)
	}
	var meters []meterState
	var models [power.DomainLimit]PowerModel
	for i := range k.Meters {
		ms := meterState{Meter: k.Meters[i].Meter, peakPower: k.Meters[i].Highest, absent: k.Meters[i].Absent * minute}
		if !ms.isValid() || ms.peakPower < 0 || k.Meters[i].Absent < 0 || k.Meters[i].Absent > longestAbsence/minute || !ms.model.decode(k.Meters[i].Model) {
			return fmt.Errorf("power models: meter %q: %w", ms.Name, fault.ErrInvalid)
		}
		meters = append(meters, ms)
	}
	for d := range models {
		if d < len(k.Domains) && !models[d].decode(k.Domains[d]) {
			return fmt.Errorf("power models: domain %d: %w", d, fault.ErrInvalid)
		}
	}
	isNew := func(h meterState) bool {
		return !slices.ContainsFunc(meters, func(ms meterState) bool { return ms.Name == h.Name })
	}
	configured := m.meters
	for _, ms := range meters {
		i := slices.IndexFunc(m.meters, func(h meterState) bool { return h.Name == ms.Name })
		switch {
		case i < 0 && slices.ContainsFunc(configured, func(h meterState) bool {
			return h.Level == ms.Level && h.Domain == ms.Domain && h.From == ms.From && isNew(h)
		}): // replaced, like an accelerator by another one
		case i < 0:
			m.meters = append(m.meters, ms)
		case m.meters[i].Level == ms.Level && m.meters[i].Domain == ms.Domain:
			m.meters[i].model, m.meters[i].peakPower = ms.model, ms.peakPower
		}
	}
	m.domainModels = models
	m.setCurves()
	return nil
}

// forgetMissing removes meters that have not been configured for too long: they are gone permanently.
func (m *Meters) forgetMissing(iv *Interval) {
	n := len(m.config.Meters)
	for i := range m.meters[n:] {
		m.meters[n+i].absent += min(iv.Elapsed, minute) // the agent itself may have been away
	}
	m.meters = append(m.meters[:n], slices.DeleteFunc(m.meters[n:], func(ms meterState) bool {
		if ms.absent <= longestAbsence {
			return false
		}
		if ms.reason != OK {
			m.tick.Events = append(m.tick.Events, Event{Meter: ms.Name, Reason: ms.reason, From: ms.failedSince, To: iv.At})
		}
		return true
	})...)
}

// isValid reports whether a meter's parameters are in range.
func (ms *meterState) isValid() bool {
	return ms.Level > 0 && ms.Level < power.LevelLimit && ms.Domain > 0 && ms.Domain < power.DomainLimit &&
		(ms.Kind == power.Energy || ms.Kind == power.Power) && ms.From > 0 && ms.From < power.OriginLimit &&
		ms.Wrap >= 0 && ms.Step >= 0 && ms.Every >= 0 && ms.ErrorPPM >= 0 && ms.Most >= 0
}

func (pm *PowerModel) encode() (k savedModel) {
	for i := range pm.bins {
		if b := &pm.bins[i]; b.weight > 0 {
			k = append(k, [5]int64{int64(i), roundToInt(b.weight), roundToInt(b.load * power.PPM), roundToInt(b.power), roundToInt(math.Sqrt(b.powerVariance))})
		}
	}
	return k
}

func (pm *PowerModel) decode(k savedModel) bool {
	for _, v := range k {
		if slices.Min(v[:]) < 0 || v[0] >= int64(len(pm.bins)) || v[1] == 0 || v[1] > binMemory || v[2] > power.PPM {
			return false
		}
		deviation := float64(v[4])
		pm.bins[v[0]] = bin{weight: float64(v[1]), load: fraction(v[2]), power: float64(v[3]), powerVariance: deviation * deviation}
		pm.points += int(v[1])
	}
	return true
}

// A Position is how far a counter is booked.
type Position struct {
	Meter     string
	At        int64 // ns of CLOCK_BOOTTIME
	Value     int64 // uJ
	ReadError int64 // uJ, error of Value
	Surplus   int64 // uJ booked beyond Value
	PeakPower int64 // highest power shown, uW
	// OutageSurplus is the part of Surplus of the present outage, and OutageError its error, in uJ.
	OutageSurplus, OutageError int64
	// Received is the share of a host that Value was taken from, and Booked what was booked up to
	// it; both are empty for other meters.
	Received, Booked power.Share
}

// Positions returns how far each counter is booked. Store them in the same record as the accounts:
// with only one of the two, energy is booked twice or not at all.
func (m *Meters) Positions() (ps []Position) {
	for i := range m.meters {
		if ms := &m.meters[i]; ms.seen && ms.Kind == power.Energy {
			p := Position{Meter: ms.Name, At: ms.at, Value: ms.value, ReadError: ms.readError, Surplus: ms.surplus, PeakPower: ms.peakPower,
				OutageSurplus: ms.outageSurplus, OutageError: ms.outageError}
			if ms.host != nil {
				p.Received, p.Booked = ms.host.received, ms.host.booked
			}
			ps = append(ps, p)
		}
	}
	return ps
}

// Resume continues from positions of the same boot, before the first tick, which then books what
// counters gained since. The Interval of that tick begins where the last tick ended. Unknown names
// and invalid values are ignored.
func (m *Meters) Resume(ps []Position) {
	for _, p := range ps {
		i := slices.IndexFunc(m.meters, func(ms meterState) bool { return ms.Name == p.Meter })
		if i < 0 || m.meters[i].Kind != power.Energy || min(p.At, p.Value, p.ReadError, p.Surplus, p.PeakPower, p.OutageSurplus, p.OutageError) < 0 {
			continue
		}
		ms := &m.meters[i]
		ms.seen, ms.at, ms.changedAt, ms.value, ms.readError, ms.surplus = true, p.At, p.At, p.Value, p.ReadError, p.Surplus
		ms.outageSurplus, ms.outageError = min(p.Surplus, p.OutageSurplus), p.OutageError
		ms.peakPower = max(ms.peakPower, p.PeakPower)
		if ms.host != nil && isValidShare(&p.Received) && isValidShare(&p.Booked) {
			ms.host.received, ms.host.booked, ms.host.baseline = p.Received, p.Booked, p.Booked
			ms.host.quality = usage.Apportioned
		}
	}
}
