package tsdb

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

var update = flag.Bool("update", false, "write the expected samples again")

// A memoryLedger is a ledger of the node n1 in memory.
type memoryLedger struct {
	names     map[workload.ShortID]batch.Name
	minutes   []batch.Minute
	wholes    []batch.NodeMinute
	through   time.Time
	unsampled map[string]batch.Span
	failing   string // name of the method that fails
	called    func(method string)
}

var errInjected = errors.New("injected failure")

func (l *memoryLedger) fail(method string) error {
	if l.called != nil {
		l.called(method)
	}
	if l.failing == method {
		return errInjected
	}
	return nil
}

func (l *memoryLedger) Node(_ context.Context, id string) (registry.Node, error) {
	switch id {
	case "n1":
		return registry.Node{ID: id, Cluster: "c", Name: "box"}, l.fail("Node")
	case "unnamed":
		return registry.Node{ID: id, Cluster: "c"}, nil
	}
	return registry.Node{}, fault.ErrNotFound
}

func (l *memoryLedger) Names(_ context.Context, _ string, shorts []workload.ShortID) (map[workload.ShortID]batch.Name, error) {
	found := map[workload.ShortID]batch.Name{}
	for _, short := range shorts {
		if n, ok := l.names[short]; ok {
			found[short] = n
		}
	}
	return found, l.fail("Names")
}

func (l *memoryLedger) Through(_ context.Context, node string) (time.Time, error) {
	if node != "n1" {
		return time.Time{}, fault.ErrNotFound
	}
	return l.through, l.fail("Through")
}

func (l *memoryLedger) Minutes(_ context.Context, _ []string, from, to time.Time, f func(int, *batch.Minute) error) error {
	for i := range l.minutes {
		m := l.minutes[i]
		if m.Minute*60 < from.Unix() || m.Minute*60 >= to.Unix() {
			continue
		}
		if err := f(0, &m); err != nil {
			return err
		}
	}
	return l.fail("Minutes")
}

func (l *memoryLedger) Wholes(_ context.Context, _ []string, from, to time.Time, f func(int, *batch.NodeMinute) error) error {
	for i := range l.wholes {
		m := l.wholes[i]
		if m.Minute*60 < from.Unix() || m.Minute*60 >= to.Unix() {
			continue
		}
		if err := f(0, &m); err != nil {
			return err
		}
	}
	return l.fail("Wholes")
}

func (l *memoryLedger) Unsampled(context.Context) (map[string]batch.Span, error) {
	return l.unsampled, l.fail("Unsampled")
}

func (l *memoryLedger) MarkUnsampled(_ context.Context, node string, s batch.Span) error {
	l.unsampled[node] = l.unsampled[node].Union(s)
	return l.fail("MarkUnsampled")
}

func (l *memoryLedger) MarkAllUnsampled(ctx context.Context, s batch.Span) error {
	return errors.Join(l.MarkUnsampled(ctx, "n1", s), l.fail("MarkAllUnsampled"))
}

func (l *memoryLedger) ClearUnsampled(_ context.Context, node string, s batch.Span) error {
	if l.unsampled[node] == s {
		delete(l.unsampled, node)
	}
	return l.fail("ClearUnsampled")
}

// A scene is a store and its ledger, in virtual time. Times are in seconds since its begin, an edge
// of a block four hours ago.
type scene struct {
	*testing.T
	begin time.Time
	cfg   Config
	l     *memoryLedger
	s     *Store
	names map[workload.ID]string
	fresh []batch.Name // those of the next batch
	boot  string

	from, to float64 // of the samples that are shown; all if they are 0
}

// play runs do in virtual time, with a new store.
func play(t *testing.T, do func(c *scene)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { playNow(t, do) })
}

// playNow is play in real time: a database that cannot be opened leaves goroutines, for which
// virtual time would wait.
func playNow(t *testing.T, do func(c *scene)) {
	t.Helper()
	c := &scene{T: t, begin: time.Now().Truncate(2 * time.Hour).Add(-4 * time.Hour), cfg: Default(), boot: "b", names: map[workload.ID]string{}}
	c.cfg.Dir, c.cfg.Reserve = filepath.Join(t.TempDir(), "metrics"), 0 // tests copy the directory
	c.l = &memoryLedger{names: map[workload.ShortID]batch.Name{}, unsampled: map[string]batch.Span{}}
	for _, kind := range []workload.Kind{workload.System, workload.Idle} {
		c.names[workload.NewID("n1", kind, "")] = kind.String()
	}
	c.open()
	defer func() { c.close() }()
	do(c)
}

func (c *scene) open() {
	c.Helper()
	var err error
	if c.s, err = Open(c.cfg, c.l, nil, slog.New(slog.DiscardHandler)); err != nil {
		c.Fatal(err)
	}
}

func (c *scene) close() {
	c.Helper()
	if err := c.s.Close(); err != nil {
		c.Error(err)
	}
}

func (c *scene) at(seconds float64) time.Time {
	return c.begin.Add(time.Duration(math.Round(seconds * 1e9)))
}

func (c *scene) idOf(key string) (workload.ShortID, batch.Name) {
	kind := workload.Container
	switch key {
	case "system":
		kind, key = workload.System, ""
	case "idle":
		kind, key = workload.Idle, ""
	}
	id := workload.NewID("n1", kind, key)
	short, _ := workload.ShortIDOf(id)
	n := batch.Name{ID: id, Kind: kind, Name: key}
	if c.names[id] == "" {
		c.names[id] = key
	}
	return short, n
}

// name names a workload in the ledger; change may be nil.
func (c *scene) name(key string, change func(n *batch.Name)) batch.Name {
	short, n := c.idOf(key)
	if change != nil {
		change(&n)
	}
	c.l.names[short] = n
	return n
}

// A use is a row: the amount of a resource in a window, and its total, or thin.
type use struct {
	key           string
	res           usage.Resource
	amount, total int64
	ended         bool
	next          bool // the first use of a further life in the window
}

const thin = -1

// window returns a window with some rows. Uses of one workload that follow each other share a row.
func (c *scene) window(from, to float64, uses ...use) usage.Window {
	const up = 1000e9 // boottime at the begin
	w := usage.Window{Boot: c.boot, Start: int64(from*1e9) + up, End: int64(to*1e9) + up, Offset: c.begin.UnixNano() - up, CPUs: 2}
	for i, u := range uses {
		short, _ := c.idOf(u.key)
		if i == 0 || uses[i-1].key != u.key || u.next {
			w.Rows = append(w.Rows, usage.Row{ShortID: short})
		}
		r := &w.Rows[len(w.Rows)-1]
		r.Usage.Covered = time.Duration(w.End - w.Start)
		r.Usage.Put(u.res, u.amount, usage.Measured)
		r.Ended = r.Ended || u.ended
		if u.total != thin {
			r.Has |= usage.SetOf(u.res)
			r.Total[u.res] = u.total
		}
	}
	return w
}

// try appends windows.
func (c *scene) try(ws ...usage.Window) (batch.Span, error) {
	c.Helper()
	cuts, err := walltime.Cut(ws, make([]time.Duration, len(ws)))
	if err != nil {
		c.Fatal(err)
	}
	fresh := c.fresh
	c.fresh = nil
	return c.s.Append(c.Context(), "n1", fresh, cuts.Windows)
}

// put appends windows, of which all samples must be taken.
func (c *scene) put(ws ...usage.Window) {
	c.Helper()
	if span, err := c.try(ws...); err != nil || !span.IsZero() {
		c.Fatal(span, err)
	}
}

// seconds returns a time as the text of seconds since the begin.
func (c *scene) seconds(ms int64) string {
	return fmt.Sprint(float64(ms-c.begin.UnixMilli()) / 1000)
}

// samples returns all samples of series whose text contains one of some words, all without any. A line is
// a series; "mete_", the cluster and the node are left out if they are those of n1.
func (c *scene) samples(words ...string) string {
	c.Helper()
	from, to := int64(0), int64(math.MaxInt64)
	if c.to > 0 {
		from, to = c.at(c.from).UnixMilli(), c.at(c.to).UnixMilli()
	}
	q, err := c.s.db.Querier(from, to)
	if err != nil {
		c.Fatal(err)
	}
	defer func() { _ = q.Close() }()
	var lines []string
	found := q.Select(c.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, model.MetricNameLabel, ".+"))
	for found.Next() {
		var b strings.Builder
		ls := found.At().Labels()
		b.WriteString(strings.TrimPrefix(ls.Get(model.MetricNameLabel), "mete_"))
		ls.Range(func(l labels.Label) {
			switch {
			case l.Name == model.MetricNameLabel, l.Name == metric.Cluster && l.Value == "c", l.Name == metric.Node && l.Value == "box":
				return
			case c.names[workload.ID(l.Value)] != "":
				l.Value = c.names[workload.ID(l.Value)]
			}
			fmt.Fprintf(&b, " %s=%s", l.Name, l.Value)
		})
		b.WriteString(":")
		it := found.At().Iterator(nil)
		for it.Next() == chunkenc.ValFloat {
			at, v := it.At()
			if text := fmt.Sprintf("%v", v); value.IsStaleNaN(v) {
				fmt.Fprintf(&b, " %s|", c.seconds(at))
			} else {
				fmt.Fprintf(&b, " %s=%s", c.seconds(at), text)
			}
		}
		if it.Err() != nil {
			c.Fatal(it.Err())
		}
		line := b.String()
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(line, w) }) {
			lines = append(lines, line)
		}
	}
	if err := found.Err(); err != nil {
		c.Fatal(err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// check compares samples with the file of the test in testdata/samples.
func (c *scene) check(words ...string) {
	c.Helper()
	path := filepath.Join("testdata", "samples", strings.ReplaceAll(strings.TrimPrefix(c.Name(), "Test"), "/", "-")+".txt")
	got := c.samples(words...)
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(got), 0o644)); err != nil {
			c.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		c.Fatal(err)
	}
	if got != string(want) {
		c.Errorf("samples differ from %s:\n%swant\n%s", path, got, want)
	}
}
