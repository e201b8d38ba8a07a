package tsdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	"mete.dev/mete/internal/delivery/walltime"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// Append appends the samples of the windows of a node's batch, one at each edge at which the
// ledger cuts them. It returns once the samples are in the database. If the database did not
// take all of them, also after an error, it returns the span of the windows: the caller
// books it with them, and [Store.Run] rebuilds the samples.
func (s *Store) Append(ctx context.Context, id string, names []batch.Name, ws []walltime.CutWindow) (unsampled batch.Span, err error) {
	n, err := s.node(ctx, id)
	complete := false
	if err == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.full = false
		n.setNames(names)
		if err = s.checkSpace(); err == nil {
			err = s.fetchNames(ctx, n, ws)
		}
		if err == nil {
			complete, err = s.append(ctx, n, ws)
		}
	}
	if len(ws) == 0 {
		return batch.Span{}, err
	}
	if err == nil {
		s.noteResumed(n, millis(ws[0].Began()))
	}
	if complete {
		return batch.Span{}, nil
	}
	for i := range ws {
		unsampled = unsampled.Union(batch.Span{From: time.Unix(0, ws[i].Began()).UTC(), To: time.Unix(0, ws[i].Ended()).UTC()})
	}
	if s.history != nil {
		s.noteUnsampled(id, unsampled)
		if n != nil && err != nil {
			n.shortLived.resetTotals()
		}
	}
	return unsampled, err
}

// append is one transaction for some windows of a node. It returns whether the database took
// all samples: it refuses those that are too old.
func (s *Store) append(ctx context.Context, n *node, ws []walltime.CutWindow) (complete bool, err error) {
	a := &appendTx{Store: s, node: n, app: s.db.AppenderV2(ctx)}
	return a.appendWindows(ws)
}

// An appendTx is one transaction.
type appendTx struct {
	*Store
	node     *node
	app      storage.AppenderV2
	appended int64
	tooOld   bool // the database refused a sample as too old
}

// appendWindows appends windows and commits.
func (a *appendTx) appendWindows(ws []walltime.CutWindow) (complete bool, err error) {
	for i := range ws {
		if err := a.appendWindow(&ws[i]); err != nil {
			return false, errors.Join(err, a.app.Rollback())
		}
	}
	if err := a.app.Commit(); err != nil {
		return false, fmt.Errorf("metrics: %w", err)
	}
	a.stats.samples.Add(a.appended)
	a.node.renamed = nil
	return !a.tooOld, nil
}

// appendWindow appends the rows of one window, and what its node has.
func (a *appendTx) appendWindow(w *walltime.CutWindow) error {
	began, end := millis(w.Began()), millis(w.Ended())
	var shortLived, overLimit []*usage.Row
	a.node.addWindow(w.Window, began, end)
	lives := livesOf(w.Rows)
	for i := range w.Rows {
		r := &w.Rows[i]
		l, several := lives[r.ShortID]
		if !several {
			l = workloadLives{first: r}
		} else if l.first != r {
			continue // done with the first one
		}
		k, ok := a.node.workloads[r.ShortID]
		if !ok && a.node.exceedsLimit(r.ShortID) {
			overLimit = l.appendTo(append(overLimit, l.within...))
			continue
		}
		if !ok {
			continue // no batch has named it yet
		}
		shortLived = append(shortLived, l.within...)
		if k.end == 0 && l.first.IsWholeLife() {
			shortLived = append(shortLived, l.first)
			l.first, l.next = l.next, nil
		}
		if l.first == nil {
			delete(a.node.workloads, r.ShortID)
			continue
		}
		last := cmp.Or(l.next, l.first)
		if k.end == 0 && !a.node.startsSeries(l.first) {
			overLimit = l.appendTo(overLimit)
			if last.Ended {
				delete(a.node.workloads, r.ShortID)
			}
			continue
		}
		if l.next != nil {
			if err := a.appendLives(k, l.first, l.next, w); err != nil {
				return err
			}
		} else if err := a.appendRow(k, l.first, w); err != nil {
			return err
		}
		again := k.ended && end > k.end
		if end >= k.end {
			k.end, k.ended, k.latest = end, last.Ended, last.Has|last.Usage.Present
		}
		if k.info == 0 || again { // the next ones are put once a minute
			if err := a.appendValue(&k.info, end, 1, func() labels.Labels { return a.node.infoLabels(k) }); err != nil {
				return err
			}
		}
		if last.Ended {
			if err := a.endSeries(k, end+1); err != nil {
				return err
			}
		}
	}
	a.countOverLimit(len(overLimit))
	if err := a.appendShortLived(append(shortLived, overLimit...), w); err != nil {
		return err
	}
	a.node.noteEnd(end)
	if end < a.node.end {
		return nil // of a backlog
	}
	a.node.end = end
	if err := a.appendMachine(w.Window, end); err != nil {
		return err
	}
	for _, ref := range a.node.outdated {
		if _, err := a.put(ref, labels.EmptyLabels(), end, staleMarker); err != nil {
			a.stats.refused.Add(1) // it has left memory, or has this sample
		}
	}
	a.node.outdated = a.node.outdated[:0]
	for _, k := range a.node.renamed {
		if !k.ended || end-k.end > time.Hour.Milliseconds() {
			continue // it was started again, or leaves memory too
		}
		for at, v := range []float64{1, staleMarker} {
			if err := a.appendValue(&k.info, k.end+int64(at), v, func() labels.Labels { return a.node.infoLabels(k) }); err != nil {
				return err
			}
		}
	}
	return a.repeatLast(end)
}

// workloadLives are the rows of one workload in a window. A workload that is started again, such as a
// service of systemd, has one for each of its lives.
type workloadLives struct {
	first  *usage.Row
	within []*usage.Row // later lives that ended in the window: whole lives
	next   *usage.Row   // the life that goes on, if another is first
}

// appendTo appends the rows that may have series of their own.
func (l *workloadLives) appendTo(rows []*usage.Row) []*usage.Row {
	rows = append(rows, l.first)
	if l.next != nil {
		rows = append(rows, l.next)
	}
	return rows
}

// livesOf returns the lives of the workloads that have several: rows of one workload, of which that of the life
// that goes on is the last.
func livesOf(rows []usage.Row) map[workload.ShortID]workloadLives {
	var ended map[workload.ShortID]*usage.Row
	var lives map[workload.ShortID]workloadLives
	for i := range rows {
		r := &rows[i]
		if first := ended[r.ShortID]; first != nil {
			l, ok := lives[r.ShortID]
			if !ok {
				l.first = first
			}
			switch {
			case l.first.IsWholeLife() && !r.HasBegun(): // this life is older than the window, and the others are beside it
				l.first, l.within = r, append(l.within, l.first)
			case r.Ended:
				l.within = append(l.within, r)
			default:
				l.next = r
			}
			if lives == nil {
				lives = map[workload.ShortID]workloadLives{}
			}
			lives[r.ShortID] = l
		} else if r.Ended {
			if ended == nil {
				ended = map[workload.ShortID]*usage.Row{}
			}
			ended[r.ShortID] = r
		}
	}
	return lives
}

// appendShortLived appends the use of all workloads that lived for less than a window. If each
// of them had series of its own, a machine that starts many would have hardly any other series.
// They share series, which also count the use of workloads above the limit of a node.
func (a *appendTx) appendShortLived(rows []*usage.Row, w *walltime.CutWindow) error {
	b, end := a.node.shortLived, millis(w.Ended())
	if end <= b.end {
		return nil // the series has the window, or later ones
	}
	had := b.had
	var sum [usage.Limit]int64
	for _, r := range rows {
		for res := range (r.Has | r.Usage.Present).All() {
			if isCounter(res) {
				sum[res] += r.Usage.Amount[res]
				b.of(res)
			}
		}
	}
	if b.had == 0 {
		return nil
	}
	for res := range b.had.All() {
		if at := millis(w.Began()); !had.Has(res) || b.restart || b.amount(res) > math.MaxInt64-sum[res] {
			if had.Has(res) {
				at++
			}
			if err := a.appendAmount(b, res, at, 0); err != nil {
				return err
			}
		}
		if err := a.appendEdges(b, res, w, b.amount(res), sum[res]); err != nil {
			return err
		}
	}
	b.end, b.restart = end, false
	return a.appendValue(&b.info, end, 1, func() labels.Labels { return a.node.infoLabels(b) })
}

// appendRow appends what one workload used in a window. A row without totals goes on
// from where the series is; one of the past says nothing then.
func (a *appendTx) appendRow(k *namedWorkload, r *usage.Row, w *walltime.CutWindow) error {
	end := millis(w.Ended())
	next := r.Has == 0 && end > k.end && k.end >= a.node.coverage.latestStart()
	for res := range (r.Has | r.Usage.Present).All() {
		amount := r.Usage.Amount[res]
		var err error
		switch {
		case !isCounter(res):
			err = a.appendAmount(k, res, end, amount)
		case next && k.had.Has(res):
			err = a.appendEdges(k, res, w, k.amount(res), amount)
		case !r.Has.Has(res):
		default:
			err = a.appendTotal(k, res, w, r.Total[res]-amount, amount)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// appendLives appends what a workload used that ended in a window and was started again in it. When it
// was started is unknown: each counter restarts from zero between the two edges where its use
// in the window reaches that of the first life.
func (a *appendTx) appendLives(k *namedWorkload, first, next *usage.Row, w *walltime.CutWindow) error {
	end := millis(w.Ended())
	follows := first.Has == 0 && end > k.end && k.end >= a.node.coverage.latestStart()
	for res := range (first.Has | first.Usage.Present | next.Has | next.Usage.Present).All() {
		used, more := first.Usage.Amount[res], next.Usage.Amount[res]
		var err error
		switch {
		case !isCounter(res):
			err = a.appendAmount(k, res, end, max(used, more))
		case first.Has.Has(res) && first.Total[res] >= used:
			err = a.appendRestarted(k, res, w, first.Total[res]-used, used, more)
		case follows && k.had.Has(res): // without totals, it goes on from where the series is
			err = a.appendRestarted(k, res, w, k.amount(res), used, more)
		default: // only the later life is known
			err = a.appendTotal(k, res, w, 0, more)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// appendRestarted appends the values of a counter that grows from before by used, restarts from zero and grows
// by more in a window. In a window of few ms it may have no sample between the two.
func (a *appendTx) appendRestarted(k *namedWorkload, res usage.Resource, w *walltime.CutWindow, before, used, more int64) error {
	last, restarted := millis(w.Began()), false
	if at, ok := k.startSample(res, before, used, last, millis(w.Ended())); ok {
		if err := a.appendAmount(k, res, at, before); err != nil {
			return err
		}
		last = at
	}
	for i := range w.Edges {
		at, grown := millis(w.Edges[i].At), w.Cumulative(used+more, i)
		total := before + grown
		if grown >= used {
			total = grown - used
		}
		if at == last && i > 0 {
			k.noteValue(res, at, total) // less than a ms after the edge before
			continue
		}
		if grown >= used {
			if !restarted && at-2 > last {
				for j, v := range []int64{before + used, 0} {
					if err := a.appendAmount(k, res, at-2+int64(j), v); err != nil {
						return err
					}
				}
			}
			restarted = true
		}
		if err := a.appendAmount(k, res, at, total); err != nil {
			return err
		}
		last = at
	}
	return nil
}

// appendTotal appends the values of a counter whose total in a window is known: before at its
// start. It is negative if the counter restarts at 2^63 in the window; or, where the series is far from that, if the
// row is of two lives, as earlier versions merged them.
func (a *appendTx) appendTotal(k *namedWorkload, res usage.Resource, w *walltime.CutWindow, before, amount int64) error {
	if before < 0 {
		total := before + amount
		switch {
		case !k.had.Has(res) || k.amount(res) >= 1<<62:
			return a.appendRestart(k, res, w, before, amount)
		case millis(w.Ended()) > k.end:
			return a.appendRestarted(k, res, w, k.amount(res), -before, total)
		}
		// A late row, which rather has two lives: what the former one had used before is not known.
		before, amount = 0, total
	}
	if at, ok := k.startSample(res, before, amount, millis(w.Began()), millis(w.Ended())); ok {
		if err := a.appendAmount(k, res, at, before); err != nil {
			return err
		}
	}
	return a.appendEdges(k, res, w, before, amount)
}

// appendRestart appends the values of a counter whose total reaches 2^63 in a window and restarts
// from zero. At the start of the window it is 2^63 + before. Just before the first edge after the
// restart the counter gets 2^63, so that the reset hides no growth.
func (a *appendTx) appendRestart(k *namedWorkload, res usage.Resource, w *walltime.CutWindow, before, amount int64) error {
	last := millis(w.Began())
	if k.end == 0 {
		if err := a.appendAmount(k, res, last, untilRestart(before)); err != nil {
			return err
		}
	}
	restarted := false
	for i := range w.Edges {
		at, total := millis(w.Edges[i].At), before+w.Cumulative(amount, i)
		switch {
		case total < 0:
			total = untilRestart(total)
		case !restarted && at-1 > last:
			if err := a.appendAmount(k, res, at-1, math.MaxInt64); err != nil {
				return err
			}
			fallthrough
		default:
			restarted = true
		}
		if at == last {
			continue // less than a ms after the edge before
		}
		if err := a.appendAmount(k, res, at, total); err != nil {
			return err
		}
		last = at
	}
	return nil
}

// untilRestart returns 2^63 + v for a negative v.
func untilRestart(v int64) int64 { return v & math.MaxInt64 }

// startSample says whether a life begins in a window, or to be shown, and when the series
// needs a sample for it: what is used since is an increase from there, also where it is
// more than all of the life before.
func (k *namedWorkload) startSample(res usage.Resource, before, amount, began, end int64) (at int64, ok bool) {
	switch {
	case before != 0:
		return began, k.end == 0 // until then others showed it, or none
	case !k.had.Has(res):
		return began, true
	}
	if at = began + 1; k.ended && k.end == began {
		at++ // the former life's end is marked there
	}
	return at, amount > 0 && end > at
}

// appendEdges appends the value of a counter at each edge of a window, in which it grows
// from before by amount.
func (a *appendTx) appendEdges(k *namedWorkload, res usage.Resource, w *walltime.CutWindow, before, amount int64) error {
	for i := range w.Edges {
		at, total := millis(w.Edges[i].At), before+w.Cumulative(amount, i)
		if i > 0 && at == millis(w.Edges[i-1].At) {
			k.noteValue(res, at, total) // a window that ends less than a ms after a minute
			continue
		}
		if err := a.appendAmount(k, res, at, total); err != nil {
			return err
		}
	}
	return nil
}

// appendAmount appends the value of an amount. A value that the database refuses, since it is too
// old or another value exists, is counted; the ledger has the amount anyway.
func (a *appendTx) appendAmount(k *namedWorkload, res usage.Resource, at, amount int64) error {
	k.noteValue(res, at, amount)
	return a.appendValue(&k.of(res).ref, at, metric.FamilyOf(res).Value(amount), func() labels.Labels { return a.node.workloadLabels(metric.FamilyOf(res), k.id) })
}

// put appends a value to the transaction. The database ignores the start time of a counter.
func (a *appendTx) put(ref storage.SeriesRef, ls labels.Labels, at int64, v float64) (storage.SeriesRef, error) {
	return a.app.Append(ref, ls, 0, at, v, nil, nil, storage.AppendV2Options{})
}

// appendValue appends a value to the series of a reference, which it finds, or makes, by
// its labels where the reference says nothing any more.
func (a *appendTx) appendValue(ref *storage.SeriesRef, at int64, v float64, of func() labels.Labels) error {
	ls := labels.EmptyLabels()
	if *ref == 0 {
		ls = of()
	}
	got, err := a.put(*ref, ls, at, v)
	if *ref != 0 && errors.Is(err, tsdb.ErrInvalidSample) {
		// The series left memory while it was still.
		got, err = a.put(0, of(), at, v)
	}
	switch {
	case err == nil:
		*ref = got
		a.appended++
	case errors.Is(err, storage.ErrTooOldSample), errors.Is(err, storage.ErrOutOfBounds):
		a.tooOld = true
		a.stats.refused.Add(1)
	case errors.Is(err, storage.ErrDuplicateSampleForTimestamp), errors.Is(err, storage.ErrOutOfOrderSample):
		a.stats.refused.Add(1)
	default:
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// appendMachine appends what there is to use on the node, and what was used of it. Jobs have the name of their machine:
// its series are those of its agent. They append a sample that is theirs alone, by which newestSample finds them.
func (a *appendTx) appendMachine(w *usage.Window, end int64) error {
	n := a.node
	if n.jobs {
		return a.appendValue(&n.shortLived.info, end, 1, func() labels.Labels { return n.infoLabels(n.shortLived) })
	}
	if err := a.appendValue(&n.refs[cpus], end, float64(w.CPUs), func() labels.Labels { return n.nodeLabels(gauges[cpus]) }); err != nil {
		return err
	}
	if length := w.End - w.Start; length > 0 {
		bytes := float64(w.Balance.Whole.Get(usage.Memory)) / (float64(length) / 1e9)
		if err := a.appendValue(&n.refs[memory], end, math.Round(bytes), func() labels.Labels { return n.nodeLabels(gauges[memory]) }); err != nil {
			return err
		}
	}
	parts := metric.PartsOf(n.id, w)
	for i := range metric.Levels {
		l := &metric.Levels[i]
		v, ok := l.Average(&parts, &w.Total, w.End-w.Start)
		if !ok {
			continue
		}
		if err := a.appendValue(&n.levels[i], end, v, func() labels.Labels { return n.levelLabels(l) }); err != nil {
			return err
		}
	}
	return nil
}

// repeatEvery is how long a series may be without a sample before the last one is
// repeated: less than what queries look back, so that what is still there and uses
// nothing does not vanish.
const repeatEvery = time.Minute

// repeatLast repeats the last value of what lives and is not in windows as it used
// nothing, or as nothing shows it any more, and the names of all, once a minute.
func (a *appendTx) repeatLast(end int64) error {
	if end-a.node.repeated < repeatEvery.Milliseconds() {
		return nil
	}
	a.node.repeated = end
	for short, k := range a.node.workloads {
		if k.ended {
			if end-k.end > time.Hour.Milliseconds() {
				delete(a.node.workloads, short)
			}
			continue
		}
		if k.end == 0 {
			// It has a name and no window. After an hour it is deleted; fetchNames looks the
			// name up again if a later window has the workload.
			if k.namedSince == 0 {
				k.namedSince = end
			} else if end-k.namedSince > time.Hour.Milliseconds() {
				delete(a.node.workloads, short)
			}
			continue
		}
		if err := a.appendValue(&k.info, end, 1, func() labels.Labels { return a.node.infoLabels(k) }); err != nil {
			return err
		}
		if k.end < a.node.coverage.latestStart() {
			continue // what it did in what has not come yet is not known
		}
		for res := range k.had.All() {
			if !isCounter(res) || k.end >= end && k.latest.Has(res) {
				continue
			}
			of := k.of(res)
			if err := a.appendValue(&of.ref, end, of.last, func() labels.Labels { return a.node.workloadLabels(metric.FamilyOf(res), k.id) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// staleMarker is the value that ends a series.
var staleMarker = math.Float64frombits(value.StaleNaN)

// endSeries ends the series of a workload that is gone.
func (a *appendTx) endSeries(k *namedWorkload, at int64) error {
	for res := range k.had.All() {
		if err := a.appendValue(&k.of(res).ref, at, staleMarker, func() labels.Labels { return a.node.workloadLabels(metric.FamilyOf(res), k.id) }); err != nil {
			return err
		}
	}
	return a.appendValue(&k.info, at, staleMarker, func() labels.Labels { return a.node.infoLabels(k) })
}

func millis(ns int64) int64 { return ns / int64(time.Millisecond) }
