package meterreader

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/x/atomicfile"
)

// A bench has a ledger with the minutes of nodes and runs a Collector, in virtual time.
type bench struct {
	*testing.T
	dir    string
	ledger *ledger.Ledger
	number map[string]uint64 // of the last batch, by node
	log    bytes.Buffer
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir(), number: map[string]uint64{}}
	b.open()
	return b
}

func (b *bench) open() {
	b.Helper()
	l, err := ledger.Open(b.Context(), filepath.Join(b.dir, "ledger.db"), ledger.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.ledger = l
}

func (b *bench) close() {
	b.Helper()
	if err := b.ledger.Close(); err != nil {
		b.Error(err)
	}
}

func (b *bench) node(id string) {
	b.Helper()
	if err := b.ledger.PutNode(b.Context(), registry.Node{ID: id, Cluster: "c", Name: "name-" + id, MachineID: id, Boot: "b", At: time.Now()}); err != nil {
		b.Fatal(err)
	}
}

// minutes books the minutes [from, to) of a node: a service uses half of its CPU and
// half of its energy, which is 20 J, or 40 J if modelled; the rest is idle.
func (b *bench) minutes(id string, q usage.Quality, from, to int64) {
	b.Helper()
	for m := from; m < to; m++ {
		b.number[id]++
		n := b.number[id]
		e := &batch.Entry{Node: id, Stream: batch.Stream{id[0]}, Number: n, Hash: batch.HashOf(fmt.Append(nil, n)), Sent: []byte("x"), Boot: "b", Through: time.Unix(60*(m+1), 0)}
		if n > 1 {
			e.Previous = batch.HashOf(fmt.Append(nil, n-1))
		}
		whole := batch.NodeMinute{Minute: m, Covered: time.Minute, CPUs: 1}
		uJ, res := int64(10e6), usage.EnergyPackage
		if q == usage.Modelled {
			uJ, res = 20e6, usage.EnergyRest
		}
		for i, r := range usage.Wholes {
			switch r {
			case usage.CPU:
				whole.Whole[i] = 60e9
			case res:
				whole.Whole[i] = 2 * uJ
			}
		}
		e.Nodes = append(e.Nodes, whole)
		for _, kind := range []workload.Kind{workload.Service, workload.Idle} {
			name := batch.Name{ID: workload.NewID(id, kind, ""), Kind: kind, Name: kind.String()}
			short, _ := workload.ShortIDOf(name.ID)
			u := usage.Usage{Covered: time.Minute}
			u.Put(usage.CPU, 30e9, usage.Measured)
			u.Put(res, uJ, q)
			u.Put(usage.EnergyError, uJ/10, q)
			e.Names = append(e.Names, name)
			e.Minutes = append(e.Minutes, batch.Minute{Workload: short, Minute: m, Usage: u})
		}
		r, err := b.ledger.Book(b.Context(), []*batch.Entry{e})
		if err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
			b.Fatalf("booking: %v, %v", r, err)
		}
	}
}

// write replaces the file of a meter.
func (b *bench) write(name, text string) {
	b.Helper()
	if err := atomicfile.Replace(filepath.Join(b.dir, name), []byte(text)); err != nil {
		b.Fatal(err)
	}
}

// collect runs a Collector during f.
func (b *bench) collect(meters string, f func(c *Collector)) {
	b.Helper()
	specs, err := external.Parse([]byte(strings.ReplaceAll(meters, "DIR", b.dir)), false)
	if err != nil {
		b.Fatal(err)
	}
	c, err := New(specs, b.ledger, slog.New(slog.NewTextHandler(&b.log, nil)))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	f(c)
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// joules returns the service's and idle energy of a node in [from, to) and the worst quality.
func (b *bench) joules(id string, from, to int64) string {
	b.Helper()
	a, err := b.ledger.Usage(b.Context(), query.Query{From: time.Unix(60*from, 0), To: time.Unix(60*to, 0), By: []query.Dimension{query.ByNode, query.ByKind}, Scope: query.Scope{All: true}})
	if err != nil {
		b.Fatal(err)
	}
	got := map[string]string{}
	worst := usage.Absent
	for _, g := range a.Groups {
		if g.Keys[0] == "name-"+id {
			sum, q := g.Usage.Energy()
			got[g.Keys[1]], worst = sum.Decimal(unit.Microjoule), max(worst, q)
		}
	}
	return fmt.Sprintf("%s + %s %s", got["service"], got["idle"], worst)
}

func (b *bench) want(what, got, want string) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %s, want %s\n%s", what, got, want, b.log.String())
	}
}

func now() int64 { return time.Now().Unix() / 60 }

const twoMeters = `meters:
  - {name: strip, type: file, file: DIR/strip, unit: W, error_percent: 1, nodes: [name-a, b]}
  - {name: plug, type: file, file: DIR/plug, unit: J, error_percent: 1, nodes: [c]}
`

// The energy of nodes sums to that of their meters in each minute, across a restart of the
// server and an outage of a meter.
func TestCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for _, n := range []string{"a", "b", "c"} {
			b.node(n)
		}
		begin := now() + 1
		joules := 0
		b.write("strip", "4")
		b.write("plug", "0")
		minute := func() { // offset by a second, so that no sample is at the edge of a minute
			for range 12 {
				time.Sleep(5 * time.Second)
				joules += 5
				b.write("plug", fmt.Sprint(joules))
			}
			m := now()
			b.minutes("a", usage.Apportioned, m-1, m)
			b.minutes("b", usage.Apportioned, m-1, m)
			b.minutes("c", usage.Modelled, m-1, m)
		}
		time.Sleep(time.Second)
		b.collect(twoMeters, func(c *Collector) {
			time.Sleep(59 * time.Second)
			for range 5 {
				minute()
			}
			time.Sleep(20 * time.Second)
			s := c.States()
			if len(s) != 2 || s[0].Name != "plug" || s[0].Minutes < 4 || s[0].Watts < .8 || s[0].Watts > 1.2 || s[1].Watts != 4 || !s[1].Failing.IsZero() {
				t.Errorf("meters: %+v", s)
			}
		})
		// 4 W are 240 J a minute for two nodes that measured 20 J each; the plug's 1 J/s
		// replaces the model of node c.
		b.want("a", b.joules("a", begin, begin+4), "240 + 240 apportioned")
		b.want("b", b.joules("b", begin, begin+4), "240 + 240 apportioned")

		// Stop the server for half a minute, and then remove the strip's file for five.
		b.close()
		time.Sleep(11 * time.Second) // offset again
		b.open()
		defer func() { b.close() }()
		b.collect(twoMeters, func(c *Collector) {
			time.Sleep(29 * time.Second) // to the edge of a minute
			b.minutes("a", usage.Apportioned, now()-1, now())
			b.minutes("b", usage.Apportioned, now()-1, now())
			b.minutes("c", usage.Modelled, now()-1, now())
			minute()
			time.Sleep(2 * time.Second) // after a sample that completes the minute, and between two from here on
			if err := os.Remove(filepath.Join(b.dir, "strip")); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				minute()
			}
			if s := c.States()[1]; s.Failing.IsZero() || !strings.Contains(s.Err, "no such file") {
				t.Errorf("strip: %+v", s)
			}
			b.write("strip", "8")
			for range 4 {
				minute()
			}
			time.Sleep(time.Minute)
		})
		b.want("across the restart", b.joules("a", begin+4, begin+7), "180 + 180 apportioned")
		b.want("without the meter", b.joules("a", begin+8, begin+11), "30 + 30 apportioned")
		b.want("with the meter again", b.joules("a", begin+14, begin+16), "240 + 240 apportioned")
		gaps, err := b.ledger.Gaps(t.Context(), time.Unix(60*begin, 0), time.Now(), "a", query.Scope{All: true})
		if err != nil || len(gaps) != 1 || gaps[0].Detail != "meter strip: gone" || gaps[0].To.Sub(gaps[0].From) != 6*time.Minute {
			t.Errorf("gaps: %+v, %v", gaps, err)
		}
		// The plug is a counter, so its energy is booked across the restart.
		plug := b.joules("c", begin, begin+16)
		if !strings.HasSuffix(plug, " apportioned") {
			t.Errorf("c: %s", plug)
		}
		for _, want := range []string{"cannot read external meter", "is readable again"} {
			if strings.Count(b.log.String(), want) != 1 {
				t.Errorf("%q is not logged once:\n%s", want, b.log.String())
			}
		}
		if faults, err := b.ledger.Check(t.Context()); err != nil || len(faults) > 0 {
			t.Errorf("ledger check: %q, %v", faults, err)
		}
	})
}

// The minutes of a counter sum to its increase, even with coarse steps.
func TestCollectorCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer func() { b.close() }()
		b.node("c")
		begin := now() + 1
		b.write("plug", "100")
		total := 0
		b.collect(`meters: [{name: plug, type: file, file: DIR/plug, unit: Wh, nodes: [c]}]`, func(*Collector) {
			for i := range 3600 {
				time.Sleep(time.Second)
				if i%108 == 59 { // 1 Wh per 108 s is 33.3 W
					total++
					b.write("plug", fmt.Sprint(100+total))
				}
				if i%60 == 59 {
					b.minutes("c", usage.Modelled, now()-1, now())
				}
			}
			time.Sleep(30 * time.Second)
		})
		// 33.33 W for 50 minutes, half of it idle by the model; the file is read every ten
		// seconds.
		var service, idle float64
		if _, err := fmt.Sscanf(b.joules("c", begin+3, begin+53), "%f + %f apportioned", &service, &idle); err != nil || math.Abs(service-idle) > .01 || service < 49500 || service > 50500 {
			t.Errorf("c: %v J + %v J, %v", service, idle, err)
		}
	})
}

// The Collector waits for nodes that are late or not enrolled, and books a missing node's
// energy to no other node.
func TestCollectorWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer func() { b.close() }()
		b.node("a")
		begin := now() + 1
		b.write("strip", "4")
		b.collect(`meters: [{name: strip, type: file, file: DIR/strip, unit: W, wait: 30m, nodes: [a, b]}]`, func(c *Collector) {
			write := func(n int) { // once a minute
				for range n {
					time.Sleep(time.Minute)
					b.write("strip", "4")
				}
			}
			write(10)
			b.minutes("a", usage.Apportioned, begin, begin+5)
			write(10)
			b.want("before b enrolls", b.joules("a", begin, begin+5), "50 + 50 apportioned")
			if !strings.Contains(b.log.String(), "external meter waits for a node") || strings.Count(b.log.String(), "waits") != 1 {
				t.Errorf("log: %s", b.log.String())
			}
			b.node("b")
			write(1)
			b.want("before b sends", b.joules("a", begin, begin+5), "50 + 50 apportioned")
			b.minutes("b", usage.Apportioned, begin, begin+2)
			write(1)
			b.want("both", b.joules("a", begin, begin+2), "120 + 120 apportioned")
			b.want("a alone", b.joules("a", begin+2, begin+5), "30 + 30 apportioned")
			write(30)
			b.want("after waiting for b", b.joules("a", begin+2, begin+5), "360 + 360 apportioned")
			b.want("b", b.joules("b", begin, begin+5), "120 + 120 apportioned")
		})
	})
}

// New reports a missing secret.
func TestNewRefuses(t *testing.T) {
	s := spec(t, "type: http", "url: http://a", "unit: W", "token_env: METE_TEST_NOT_THERE")
	if _, err := New([]external.Spec{*s}, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `meter "m": token_env: METE_TEST_NOT_THERE is not set`) {
		t.Error(err)
	} else if fault.Hint(err) != "" {
		t.Error(fault.Hint(err))
	}
}
