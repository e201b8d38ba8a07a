package tsdb_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/store/tsdb"
)

var seed = flag.Uint64("seed", 1, "seed of the histories of tests")

// A flakyLedger is a ledger whose method Names fails on demand.
type flakyLedger struct {
	*ledger.Ledger
	fails atomic.Bool
}

func (n *flakyLedger) Names(ctx context.Context, node string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error) {
	if n.fails.Load() {
		return nil, errors.New("injected failure")
	}
	return n.Ledger.Names(ctx, node, shorts)
}

// A journal is a log buffer for several goroutines.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// A pair is a ledger and a time series database that get the same windows.
type pair struct {
	t            *testing.T
	dir          string
	log          journal // of metrics
	ledger       *flakyLedger
	metrics      *tsdb.Store
	rand         *rand.Rand
	number       uint64
	stream       byte
	begin        time.Time
	at           int64 // boottime in ns
	alive        []*runningWorkload
	names        []batch.Name
	all          []batch.Name // of all workloads so far
	count        int
	maxWorkloads int                  // limit of workloads with own series; 0 means the default
	maxAge       time.Duration        // limit of the age of samples; 0 means the default
	brief        map[workload.ID]bool // workloads that lived in one window only
}

// A runningWorkload is a workload that runs.
type runningWorkload struct {
	name      batch.Name
	short     workload.ShortID
	total     [usage.Limit]int64
	still     bool
	first     bool
	restarted bool // it was restarted
	permanent bool // it never ends
}

var pairResources = []usage.Resource{usage.CPU, usage.Memory, usage.DiskRead, usage.EnergyRest}

func newPair(t *testing.T, back time.Duration) *pair {
	t.Helper()
	dir := t.TempDir()
	return newPairIn(t, *seed, back, dir, filepath.Join(dir, "ledger.db"))
}

func newPairIn(t *testing.T, seed uint64, back time.Duration, dir, at string) *pair {
	t.Helper()
	p := &pair{t: t, dir: dir, brief: map[workload.ID]bool{}, rand: rand.New(rand.NewPCG(seed, 12))}
	// Windows start at any offset in a minute and in the two hours of a block.
	p.begin = time.Now().Truncate(2 * time.Hour).Add(-back - time.Duration(p.rand.Int64N(int64(2*time.Hour))))
	p.openLedger(at)
	if err := p.ledger.PutNode(t.Context(), registry.Node{ID: "n1", Cluster: "lab", Name: "box", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	p.open()
	t.Cleanup(p.close)
	p.start(workload.Idle, "")
	p.start(workload.System, "")
	for i := range 6 {
		p.start(workload.Container, fmt.Sprint("steady", i))
	}
	return p
}

// copyTo copies a pair, whose test has ended, with its files, for another test. The time series
// database of the copy is still closed.
func (p *pair) copyTo(t *testing.T) *pair {
	t.Helper()
	o := &pair{t: t, dir: t.TempDir(), rand: rand.New(rand.NewPCG(*seed, 13)), number: p.number, stream: p.stream, begin: p.begin, at: p.at,
		names: slices.Clone(p.names), all: slices.Clone(p.all), count: p.count, brief: maps.Clone(p.brief)}
	for _, w := range p.alive {
		copied := *w
		o.alive = append(o.alive, &copied)
	}
	if err := os.CopyFS(o.dir, os.DirFS(p.dir)); err != nil {
		t.Fatal(err)
	}
	o.openLedger(filepath.Join(o.dir, "ledger.db"))
	return o
}

// openLedger opens a ledger until the end of the test.
func (p *pair) openLedger(at string) {
	p.t.Helper()
	l, err := ledger.Open(p.t.Context(), at, ledger.Default(), slog.New(slog.DiscardHandler))
	if err != nil {
		p.t.Fatal(err)
	}
	p.ledger = &flakyLedger{Ledger: l}
	p.t.Cleanup(func() {
		if err := l.Close(); err != nil {
			p.t.Error(err)
		}
	})
}

func (p *pair) metricsDir() string { return filepath.Join(p.dir, "metrics") }

func (p *pair) open() {
	p.t.Helper()
	cfg := tsdb.Default()
	cfg.Dir, cfg.BackfillDelay = p.metricsDir(), time.Second
	if p.maxWorkloads > 0 {
		cfg.Workloads = p.maxWorkloads
	}
	if p.maxAge > 0 {
		cfg.OutOfOrderWindow = p.maxAge
	}
	var err error
	if p.metrics, err = tsdb.Open(cfg, p.ledger, nil, slog.New(slog.NewTextHandler(&p.log, nil))); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) close() {
	p.t.Helper()
	if err := p.metrics.Close(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) start(kind workload.Kind, key string) *runningWorkload {
	id := workload.NewID("n1", kind, key)
	short, _ := workload.ShortIDOf(id)
	w := &runningWorkload{name: batch.Name{ID: id, Kind: kind, Name: kind.String() + key, Started: p.wall()}, short: short, first: true}
	p.alive = append(p.alive, w)
	p.names = append(p.names, w.name)
	p.all = append(p.all, w.name)
	return w
}

func (p *pair) wall() time.Time { return p.begin.Add(time.Duration(p.at)) }

// window returns the next window, of 9 to 13 seconds.
func (p *pair) window() usage.Window {
	length := int64(9e9) + p.rand.Int64N(4e9)
	win := usage.Window{Boot: "b", Start: p.at, End: p.at + length, Offset: p.begin.UnixNano(), CPUs: 2}
	p.at += length
	if p.rand.IntN(60) == 0 {
		p.count++
		p.start(workload.Container, fmt.Sprint("passing", p.count))
	}
	var left []*runningWorkload
	for i, w := range p.alive {
		switch {
		case i < 2:
		case !w.restarted && p.rand.IntN(90) == 0:
			w.still = !w.still
		case p.rand.IntN(400) == 0:
			// A restart. The workload must not be still afterwards, or backfill could
			// not distinguish its lives.
			w.total, w.restarted, w.still = [usage.Limit]int64{}, true, false
		}
		ends := i >= 8 && !w.permanent && (p.rand.IntN(80) == 0 || w.first && p.rand.IntN(3) == 0)
		if ends {
			for j := range p.all {
				if p.all[j].ID == w.name.ID {
					w.name.Ended = p.wall()
					p.all[j] = w.name
				}
			}
			p.names = append(p.names, w.name)
		} else {
			left = append(left, w)
		}
		if w.still && !ends && !w.first {
			continue
		}
		if ends && w.first {
			p.brief[w.name.ID] = true
		}
		row := usage.Row{ShortID: w.short, Ended: ends}
		w.first = false
		row.Usage.Covered = time.Duration(length)
		for _, res := range pairResources {
			v := p.rand.Int64N(1 << 33)
			row.Usage.Put(res, v, usage.Measured)
			w.total[res] += v
			row.Has |= usage.SetOf(res)
			row.Total[res] = w.total[res]
		}
		win.Rows = append(win.Rows, row)
	}
	p.alive = left
	return win
}

// A sent is the content of a batch.
type sent struct {
	names []batch.Name
	ws    []usage.Window
}

func (p *pair) batch() sent {
	b := sent{}
	for range 6 {
		b.ws = append(b.ws, p.window())
	}
	b.names, p.names = p.names, nil
	return b
}

// put adds a batch to both stores, as the receiver does. Each batch has its own stream, so
// that batches can arrive late.
func (p *pair) put(b sent) {
	p.t.Helper()
	cuts, err := walltime.Cut(b.ws, make([]time.Duration, len(b.ws)))
	if err != nil {
		p.t.Fatal(err)
	}
	unsampled, err := p.metrics.Append(p.t.Context(), "n1", b.names, cuts.Windows)
	if err != nil && !p.ledger.fails.Load() {
		p.t.Fatal(err)
	}
	p.stream++
	e := &batch.Entry{
		Node: "n1", Stream: batch.Stream{p.stream, byte(p.number), byte(p.number >> 8)}, Number: 1, Hash: batch.Hash{1}, Boot: "b",
		Names: b.names, Minutes: cuts.Minutes, Nodes: cuts.Nodes, Through: walltime.End(&b.ws[len(b.ws)-1], 0), Unsampled: unsampled,
	}
	p.number++
	r, err := p.ledger.Book(p.t.Context(), []*batch.Entry{e})
	if err != nil || r[0].Err != nil || r[0].Verdict != batch.Accepted {
		p.t.Fatal(err, r)
	}
}

// live puts batches for a duration.
func (p *pair) live(d time.Duration) {
	p.t.Helper()
	for end := p.at + int64(d); p.at < end; {
		p.put(p.batch())
	}
}

// late makes ten batches and puts them after the batches of the next d.
func (p *pair) late(d time.Duration) {
	p.t.Helper()
	var held []sent
	for range 10 {
		held = append(held, p.batch())
	}
	for _, b := range held {
		p.names = append(p.names, b.names...) // as if the server had asked for them
	}
	p.live(d)
	for _, b := range held {
		p.put(b)
	}
}

// fill waits for the backfill, reopens the database so that the samples become visible, and
// returns their number. It checks that the backfill changed no existing sample.
func (p *pair) fill() (put int64) {
	p.t.Helper()
	before := p.samples()
	defer func() {
		after := p.samples()
		for key, v := range before {
			if got, ok := after[key]; !ok || math.Float64bits(got) != math.Float64bits(v) {
				p.t.Fatalf("%v: %v before the backfill, %v (%v) after", key, v, got, ok)
			}
		}
	}()
	ctx, stop := context.WithCancel(p.t.Context())
	done := make(chan error)
	go func() { done <- p.metrics.Run(ctx) }()
	for p.metrics.Stats().IncompleteNodes > 0 {
		time.Sleep(20 * time.Millisecond) // in virtual time, except with PostgreSQL
	}
	stop()
	if err := <-done; err != nil {
		p.t.Fatal(err)
	}
	put = p.metrics.Stats().Backfilled
	p.close()
	p.open()
	for _, b := range p.metrics.DB().Blocks() {
		// A block that overlaps the head would hide the head's samples.
		m, width := b.Meta(), (2 * time.Hour).Milliseconds()
		if m.Compaction.Level == 1 && m.MinTime/width != (m.MaxTime-1)/width {
			p.t.Errorf("block from %v to %v exceeds two hours", time.UnixMilli(m.MinTime).UTC(), time.UnixMilli(m.MaxTime).UTC())
		}
	}
	return put
}

// A sampleKey is a series and an instant.
type sampleKey struct {
	series string
	at     int64
}

// samples returns all samples.
func (p *pair) samples() map[sampleKey]float64 {
	p.t.Helper()
	all := map[sampleKey]float64{}
	q, err := p.metrics.Queryable().Querier(0, math.MaxInt64)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	found := q.Select(p.t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, metric.FamilyOf(usage.CPU).Name))
	for found.Next() {
		series := found.At().Labels().String()
		it := found.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			all[sampleKey{series, at}] = v
		}
	}
	if err := found.Err(); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// increase returns the increase of a workload's series within a range, counting a decrease
// as a reset to zero. off is the rounding error of 53-bit values: 2^-53 of each end of each
// life. seen is the number of samples.
func (p *pair) increase(f *metric.Family, id string, from, to time.Time) (sum, off float64, seen int) {
	p.t.Helper()
	q, err := p.metrics.Queryable().Querier(0, to.UnixMilli())
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	found := q.Select(p.t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, model.MetricNameLabel, f.Name),
		labels.MustNewMatcher(labels.MatchEqual, cmp.Or(f.Label, metric.Domain), f.LabelValue), labels.MustNewMatcher(labels.MatchEqual, metric.Workload, id))
	for found.Next() {
		begin, before := math.NaN(), math.NaN()
		life := func() {
			if !math.IsNaN(before) {
				sum += before - begin
				off += math.Ldexp(before+begin, -53)
			}
		}
		it := found.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			switch {
			case value.IsStaleNaN(v):
				continue
			case math.IsNaN(before), at <= from.UnixMilli():
				begin = v
			case v < before:
				life()
				begin = 0
			}
			before = v
			seen++
		}
		life()
	}
	if err := found.Err(); err != nil {
		p.t.Fatal(err)
	}
	return sum, off + math.Ldexp(sum, -52), seen
}

// checkEqual compares the increase of series with the ledger, for random workloads and ranges
// of whole minutes.
func (p *pair) checkEqual(when string, from time.Time) {
	p.t.Helper()
	first, last := from.Truncate(time.Minute).Add(time.Minute), p.wall().Truncate(time.Minute)
	minutes := int(last.Sub(first) / time.Minute)
	some := 0
	for i := range 60 {
		a := p.rand.IntN(minutes)
		b := a + 1 + p.rand.IntN(minutes-a)
		if i < 10 {
			a, b = 0, minutes
		}
		t1, t2 := first.Add(time.Duration(a)*time.Minute), first.Add(time.Duration(b)*time.Minute)
		n := p.all[p.rand.IntN(len(p.all))]
		if i%2 == 0 {
			n = p.all[p.rand.IntN(8)]
		}
		if p.brief[n.ID] {
			continue // they share a series
		}
		answer, err := p.ledger.Usage(p.t.Context(), query.Query{Scope: query.Scope{All: true}, From: t1, To: t2,
			By: []query.Dimension{query.ByWorkload}, Where: map[query.Dimension][]string{query.ByWorkload: {n.Name}}})
		if err != nil {
			p.t.Fatal(err)
		}
		if !answer.From.Equal(t1) || !answer.To.Equal(t2) {
			p.t.Fatalf("%s: asked for %v to %v, got %v to %v", when, t1, t2, answer.From, answer.To)
		}
		for _, res := range pairResources {
			f := metric.FamilyOf(res)
			var want float64
			if len(answer.Groups) > 0 {
				want = f.Value(answer.Groups[0].Usage.Sum[res].Int64())
			}
			got, off, seen := p.increase(f, string(n.ID), t1, t2)
			if want > 0 {
				some++
			}
			if math.Abs(got-want) > math.Max(1e-9*want, off) {
				p.t.Errorf("%s: %s of %s from %v to %v: series increased by %v in %d samples, ledger has %v", when, res, n.Name, t1.UTC(), t2.UTC(), got, seen, want)
			}
		}
	}
	if p.t.Failed() {
		p.t.FailNow()
	}
	if some < 80 {
		p.t.Errorf("%s: only %d comparisons with nonzero use", when, some)
	}
}
