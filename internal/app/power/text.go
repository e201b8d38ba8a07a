package power

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"

	"mete.dev/mete/internal/model/live"
)

// text is the listing for people.
func (l *listing) text() []byte {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	l.putMeters(w)
	putMachine(w, l.Machine)
	l.putCurve(w)
	l.putGuests(w)
	_ = w.Flush() // a buffer does not fail
	return b.Bytes()
}

func (l *listing) putMeters(w io.Writer) {
	if len(l.Meters) == 0 {
		fmt.Fprintln(w, "no meter: the energy of this machine is modelled")
	} else {
		fmt.Fprintln(w, "METER\tFROM\tLEVEL\tDOMAIN\tSHOWS\tERROR\tPOWER")
	}
	for _, m := range l.Meters {
		now := absent(m.Why)
		if m.Watts != nil {
			now = fmt.Sprintf("%.1f W ±%.1f, %v", *m.Watts, *m.Error, m.Quality)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", m.Name, m.From, m.Level, m.Domain, m.Shows, errorPercent(m.Class), now)
	}
	for _, r := range l.Refused {
		fmt.Fprintf(w, "cannot be read: %s\n", r.Error)
		if r.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", r.Hint)
		}
	}
}

func putMachine(w io.Writer, e *live.Energy) {
	if e != nil {
		fmt.Fprintf(w, "\nthis machine, at present: %.1f W ±%.1f, %v; %.1f W of that if it did nothing\n", e.Watts, e.Error, e.Quality, e.Idle)
	}
}

func (l *listing) putCurve(w io.Writer) {
	c := &l.Curve
	fmt.Fprintf(w, "\nwithout a meter: %s, %s of %s", c.Source, errorPercent(c.Class), c.Of)
	if c.Idle > c.Class {
		fmt.Fprintf(w, ", %s when idle", errorPercent(c.Idle))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "processor: %s\n", l.Processor)
	fmt.Fprintf(w, "load\tpower (modelled)\n")
	for _, p := range c.Points {
		fmt.Fprintf(w, "%d %%\t%.1f W\n", p.Load, p.Watts)
	}
}

func (l *listing) putGuests(w io.Writer) {
	switch {
	case l.VMsWhy != "":
		fmt.Fprintf(w, "\nvirtual machines: %s\n", absent(l.VMsWhy))
		return
	case len(l.VMs) == 0:
		fmt.Fprintln(w, "\nno virtual machine runs here")
		return
	}
	fmt.Fprintln(w, "\nVIRTUAL MACHINE\tUUID\tVCPUS\tCID\tCPU\tSTEAL\tEXITS/s\tWORKLOAD")
	for i := range l.VMs {
		g := &l.VMs[i]
		uuid, cid, in := "none", "none", "unknown"
		if g.UUID != nil {
			uuid = *g.UUID
		}
		if g.CID != nil {
			cid = fmt.Sprint(*g.CID)
		}
		if g.Workload != nil {
			in = fmt.Sprintf("%v %s", g.Workload.Kind, g.Workload.Name)
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", g.displayName(), uuid, g.VCPUs, cid, number("%.2f", g.CPU), number("%.2f", g.Steal), number("%.0f", g.Exits), in)
	}
	fmt.Fprintf(w, "CPU and STEAL are in CPUs of this machine, EXITS a second; measured over %.1f s\n", l.Over)
	for i := range l.VMs {
		l.VMs[i].putWhys(w)
	}
}

// putWhys writes the reasons for missing values.
func (g *guest) putWhys(w io.Writer) {
	for _, why := range []struct{ what, text, hint string }{
		{"no share of energy of its own", g.EnergyWhy, ""},
		{"CPU absent", g.CPUWhy, ""},
		{"STEAL absent", g.StealWhy, ""},
		{"EXITS absent", g.ExitsWhy, g.ExitsHint},
	} {
		if why.text == "" {
			continue
		}
		fmt.Fprintf(w, "%s: %s: %s\n", g.displayName(), why.what, why.text)
		if why.hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", why.hint)
		}
	}
}

// displayName returns the virtual machine's name, or its process.
func (g *guest) displayName() string {
	if g.Name == "" {
		return fmt.Sprintf("PID %d", g.PID)
	}
	return g.Name
}

func number(format string, v *float64) string {
	if v == nil {
		return "absent"
	}
	return fmt.Sprintf(format, *v)
}

func absent(why string) string { return "absent (" + why + ")" }

// errorPercent formats an error class. A meter without one reports the error with each value.
func errorPercent(class float64) string {
	if class == 0 {
		return "as it says"
	}
	return fmt.Sprintf("±%.3g %%", class)
}
