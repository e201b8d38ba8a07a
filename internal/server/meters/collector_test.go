package meters

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

// A bench is a ledger, machines that tell it of each minute, and a keeper, all in
// made-up time.
type bench struct {
	*testing.T
	dir    string
	ledger *ledger.Ledger
	number map[string]uint64 // of the batches of each node
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

// minutes books minutes of a node up to now: half of its CPU is used by a service, and
// of 20 J, or 40 J by a model, half is idle.
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
		for _, k := range []workload.Kind{workload.Service, workload.Idle} {
			name := batch.Name{ID: workload.NewID(id, k, ""), Kind: k, Name: k.String()}
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

// write is what a meter's file holds from now on.
func (b *bench) write(name, text string) {
	b.Helper()
	if err := atomicfile.Replace(filepath.Join(b.dir, name), []byte(text)); err != nil {
		b.Fatal(err)
	}
}

// keep runs a keeper of meters while f does something.
func (b *bench) keep(meters string, f func(k *Collector)) {
	b.Helper()
	specs, err := external.Parse([]byte(strings.ReplaceAll(meters, "DIR", b.dir)), false)
	if err != nil {
		b.Fatal(err)
	}
	k, err := New(specs, b.ledger, slog.New(slog.NewTextHandler(&b.log, nil)))
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	f(k)
	stop()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

// joules is the energy of a node in [from, to), idle and not, and its worst quality.
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

// Machines sum to their meters, minute after minute, over a restart of the server and
// while a meter is away.
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
		minute := func() { // with a second to spare, so that samples are at no edge
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
		b.keep(twoMeters, func(k *Collector) {
			time.Sleep(59 * time.Second)
			for range 5 {
				minute()
			}
			time.Sleep(20 * time.Second)
			s := k.States()
			if len(s) != 2 || s[0].Name != "plug" || s[0].Minutes < 4 || s[0].Watts < .8 || s[0].Watts > 1.2 || s[1].Watts != 4 || !s[1].Failing.IsZero() {
				t.Errorf("the meters are %+v", s)
			}
		})
		// 4 W are 240 J a minute for two machines that measured 20 J each; 1 J/s of the plug
		// stands instead of a model.
		b.want("a", b.joules("a", begin, begin+4), "240 + 240 apportioned")
		b.want("b", b.joules("b", begin, begin+4), "240 + 240 apportioned")

		// The server is away for half a minute, and then the strip's meter for five.
		b.close()
		time.Sleep(10 * time.Second)
		b.open()
		defer func() { b.close() }()
		b.keep(twoMeters, func(k *Collector) {
			time.Sleep(30 * time.Second) // to the edge of a minute
			b.minutes("a", usage.Apportioned, now()-1, now())
			b.minutes("b", usage.Apportioned, now()-1, now())
			b.minutes("c", usage.Modelled, now()-1, now())
			minute()
			if err := os.Remove(filepath.Join(b.dir, "strip")); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				minute()
			}
			if s := k.States()[1]; s.Failing.IsZero() || !strings.Contains(s.Err, "no such file") {
				t.Errorf("the strip is %+v", s)
			}
			b.write("strip", "8")
			for range 4 {
				minute()
			}
			time.Sleep(time.Minute)
		})
		b.want("over the restart", b.joules("a", begin+4, begin+7), "180 + 180 apportioned")
		b.want("without a meter", b.joules("a", begin+8, begin+11), "30 + 30 apportioned")
		b.want("with it again", b.joules("a", begin+14, begin+16), "240 + 240 apportioned")
		gaps, err := b.ledger.Gaps(t.Context(), time.Unix(60*begin, 0), time.Now(), "a", query.Scope{All: true})
		if err != nil || len(gaps) != 1 || gaps[0].Detail != "meter strip: gone" || gaps[0].To.Sub(gaps[0].From) != 6*time.Minute {
			t.Errorf("gaps: %+v, %v", gaps, err)
		}
		// The plug went on all the time: what it counted is booked, but for what it did
		// while nobody wrote the file.
		plug := b.joules("c", begin, begin+16)
		if !strings.HasSuffix(plug, " apportioned") {
			t.Errorf("c: %s", plug)
		}
		for _, want := range []string{"a meter outside the machines cannot be read", "is read again"} {
			if strings.Count(b.log.String(), want) != 1 {
				t.Errorf("the log does not have %q once:\n%s", want, b.log.String())
			}
		}
		if faults, err := b.ledger.Check(t.Context()); err != nil || len(faults) > 0 {
			t.Errorf("the ledger: %q, %v", faults, err)
		}
	})
}

// A counter's minutes sum to what it counted, however coarse it is.
func TestCollectorCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer func() { b.close() }()
		b.node("c")
		begin := now() + 1
		b.write("plug", "100")
		total := 0
		b.keep(`meters: [{name: plug, type: file, file: DIR/plug, unit: Wh, nodes: [c]}]`, func(*Collector) {
			for i := range 3600 {
				time.Sleep(time.Second)
				if i%108 == 59 { // a watt-hour each 108 s is 33.3 W
					total++
					b.write("plug", fmt.Sprint(100+total))
				}
				if i%60 == 59 {
					b.minutes("c", usage.Modelled, now()-1, now())
				}
			}
			time.Sleep(30 * time.Second)
		})
		// 33.33 W for 50 minutes, of which the model says that half is idle; the file is
		// read each ten seconds.
		var service, idle float64
		if _, err := fmt.Sscanf(b.joules("c", begin+3, begin+53), "%f + %f apportioned", &service, &idle); err != nil || math.Abs(service-idle) > .01 || service < 49500 || service > 50500 {
			t.Errorf("c has %v and %v J, %v", service, idle, err)
		}
	})
}

// Nobody pays for a machine that is not there, and a machine that is late is waited
// for.
func TestCollectorWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer func() { b.close() }()
		b.node("a")
		begin := now() + 1
		b.write("strip", "4")
		b.keep(`meters: [{name: strip, type: file, file: DIR/strip, unit: W, wait: 30m, nodes: [a, b]}]`, func(k *Collector) {
			write := func(n int) { // the file is written now and then
				for range n {
					time.Sleep(time.Minute)
					b.write("strip", "4")
				}
			}
			write(10)
			b.minutes("a", usage.Apportioned, begin, begin+5)
			write(10)
			b.want("before b is there", b.joules("a", begin, begin+5), "50 + 50 apportioned")
			if !strings.Contains(b.log.String(), "a meter waits for a node") || strings.Count(b.log.String(), "waits") != 1 {
				t.Errorf("the log: %s", b.log.String())
			}
			b.node("b")
			write(1)
			b.want("before b has told", b.joules("a", begin, begin+5), "50 + 50 apportioned")
			b.minutes("b", usage.Apportioned, begin, begin+2)
			write(1)
			b.want("both", b.joules("a", begin, begin+2), "120 + 120 apportioned")
			b.want("a alone", b.joules("a", begin+2, begin+5), "30 + 30 apportioned")
			write(30)
			b.want("b was waited for", b.joules("a", begin+2, begin+5), "360 + 360 apportioned")
			b.want("b", b.joules("b", begin, begin+5), "120 + 120 apportioned")
		})
	})
}

// What a meter lacks is said when the server starts.
func TestNewRefuses(t *testing.T) {
	s := spec(t, "type: http", "url: http://a", "unit: W", "token_env: METE_TEST_NOT_THERE")
	if _, err := New([]external.Spec{*s}, nil, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), `meter "m": token_env: the environment has no METE_TEST_NOT_THERE`) {
		t.Error(err)
	} else if fault.Hint(err) != "" {
		t.Error(fault.Hint(err))
	}
}
