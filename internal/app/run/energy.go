package run

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/meter"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/x/statedir"
)

// powerMeters are the machine's meters of energy, which are opened while mete creates the job's groups.
type powerMeters struct {
	h       *hostfs.FS
	opened  chan struct{}
	power   *sources.Power
	learned []byte // what this machine's agent learned of its power; nil is none
	known   *energy.Meters
	denied  []error // meters that exist but cannot be read
	err     error   // why energy is absent
	close   func()
}

func openPower(h *hostfs.FS, powercap string) *powerMeters {
	j := &powerMeters{h: h, opened: make(chan struct{})}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.open(powercap)
		close(j.opened)
		if j.err == nil {
			// It fails only if the clocks fail, which reading reports too.
			_ = j.power.Meters.Run(ctx)
		}
	}()
	j.close = func() {
		select {
		case <-j.opened:
		default:
			return // a sensor hangs; this process is about to end
		}
		stop()
		<-ended
		if j.power != nil && j.power.Meters != nil {
			_ = j.power.Meters.Close() // read only
		}
	}
	return j
}

func (p *powerMeters) open(powercap string) {
	var cfg sources.Config
	cfg.Energy.Powercap = powercap
	if p.power, p.err = sources.OpenPower(p.h, cfg); p.err != nil {
		return
	}
	p.denied = p.power.Meters.OpenErrors()
	if dir, err := statedir.Default(os.Getenv, os.Geteuid()); err == nil && powercap == "" {
		if b, err := os.ReadFile(filepath.Join(dir, "agent", "power.json")); err == nil {
			p.learned = b
		}
	}
}

// addTo gives the meters to the job's, once they are open.
func (p *powerMeters) addTo(m *meter.Meter) {
	select {
	case <-p.opened:
	case <-time.After(loadTimeout):
		p.err = fmt.Errorf("the meters were not ready within %v", loadTimeout)
		return
	}
	if p.err != nil {
		return
	}
	p.known = energy.New(energy.Config{Meters: p.power.Meters.Meters(), Curve: p.power.Curve})
	if p.learned != nil {
		// Ignore a broken model, or one of another machine: it is learned again.
		_ = p.known.RestoreModels(p.power.Processor, p.learned)
	}
	m.SetPower(p.power.Meters, p.known)
}

// explain adds the source of the job's energy to the report, and notes on what is missing. events are
// those of the meters while the job ran.
func (p *powerMeters) explain(r *report.Report, events []energy.Event) {
	if p.err != nil {
		r.Notes = append(r.Notes, "energy is absent: "+firstLine(p.err.Error()))
		return
	}
	if _, ok := r.Get(report.Energy); !ok {
		return
	}
	var from []string
	for d := power.Package; d < power.DomainLimit; d++ {
		if s := p.known.Source(d); s != "" {
			from = append(from, d.String()+" by "+s)
		}
	}
	if r.EnergySource = strings.Join(from, "; "); len(from) == 1 {
		_, r.EnergySource, _ = strings.Cut(r.EnergySource, " by ") // one domain: no need to name it
	}
	r.Notes = append(r.Notes, faults(events)...)
	if len(p.denied) > 0 {
		// Report one: all have the same reason.
		text := firstLine(p.denied[0].Error())
		if hint := fault.Hint(p.denied[0]); hint != "" {
			text += "; " + hint
		}
		r.Notes = append(r.Notes, "energy meter "+text)
	}
}

// faults returns the failures of meters, each once.
func faults(events []energy.Event) (notes []string) {
	for _, event := range events {
		what := fmt.Sprintf("energy meter %s temporarily not used: %s, ", event.Meter, event.Reason)
		told := func(text string) bool { return strings.HasPrefix(text, what) }
		if event.To == 0 && !slices.ContainsFunc(notes, told) {
			notes = append(notes, what+event.Detail)
		}
	}
	return notes
}
