package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/prom/exposition"
)

// federatePath is the path at which a Prometheus scrapes the latest samples.
const federatePath = "/federate"

// maxSelectors limits the selectors of one scrape.
const maxSelectors = 64

// federate answers with the latest sample of each series that a selector match[] selects, as Prometheus's own
// /federate does: in the text format, with the time of each sample, without native histograms and stale series.
func (a *API) federate(from storage.Queryable) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		selectors := r.Form["match[]"]
		if len(selectors) == 0 || len(selectors) > maxSelectors {
			reject(w, http.StatusBadRequest, "bad_data", fmt.Sprintf("%d parameters match[]: give one to %d selectors, as match[]={__name__=~\"mete_workload_.*\"}", len(selectors), maxSelectors))
			return
		}
		sets, err := a.parser.ParseMetricSelectors(selectors)
		if err != nil {
			reject(w, http.StatusBadRequest, "bad_data", "invalid parameter \"match[]\": "+err.Error())
			return
		}
		text, err := a.latest(r.Context(), from, sets, time.Now())
		if err != nil {
			code, kind := http.StatusUnprocessableEntity, "execution"
			if _, slow := statusOf[any](nil, err); slow || errors.Is(err, context.DeadlineExceeded) {
				code, kind = http.StatusServiceUnavailable, "timeout"
			}
			reject(w, code, kind, err.Error())
			return
		}
		w.Header().Set("Content-Type", exposition.ContentType)
		_, _ = w.Write([]byte(text)) // a client that has gone away needs no answer
	}
}

// latest returns the latest samples of selected series in the text format.
func (a *API) latest(ctx context.Context, from storage.Queryable, selected [][]*labels.Matcher, now time.Time) (string, error) {
	start, end := now.Add(-a.limits.Lookback).UnixMilli(), now.UnixMilli()
	q, err := from.Querier(start, end)
	if err != nil {
		return "", err
	}
	defer func() { _ = q.Close() }() // it was only read
	var sets []storage.SeriesSet
	for _, ms := range selected {
		sets = append(sets, q.Select(ctx, true, &storage.SelectHints{Start: start, End: end, Func: federateFunc}, ms...))
	}
	kinds := map[string]metric.Metric{}
	for _, m := range metric.Metrics() {
		kinds[m.Name] = m
	}
	all := storage.NewMergeSeriesSet(sets, 0, storage.ChainedSeriesMerge)
	var text exposition.Text
	var it chunkenc.Iterator
	name := ""
	for all.Next() {
		s := all.At()
		it = s.Iterator(it)
		at, v := int64(math.MinInt64), 0.0
		for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
			if kind == chunkenc.ValFloat {
				at, v = it.At()
			}
		}
		if err := it.Err(); err != nil {
			return "", err
		}
		pairs, ok := classicLabels(s.Labels())
		if at < start || value.IsStaleNaN(v) || !ok {
			continue
		}
		if n := s.Labels().Get(model.MetricNameLabel); n != name {
			if name = n; kinds[n].Name != "" {
				text.Begin(kinds[n].Type, n, kinds[n].Help)
			} else {
				text.BeginUntyped(n)
			}
		}
		text.PutAt(v, at, pairs...)
		if most := a.limits.answerBytes; int64(text.Len()) > most {
			return "", limitError(fmt.Sprintf("more than %d bytes in one answer", most), "use narrower selectors, and several scrapes", a.limits.Memory)
		}
	}
	return text.String(), all.Err()
}

// federateFunc marks the series of a scrape, of which one is held at a time.
const federateFunc = "federate"

// classicLabels returns names and values of the labels of a series; false if the text format does not have its names.
func classicLabels(ls labels.Labels) (pairs []string, ok bool) {
	ok = model.LegacyValidation.IsValidMetricName(ls.Get(model.MetricNameLabel))
	ls.Range(func(l labels.Label) {
		if l.Name == model.MetricNameLabel {
			return
		}
		ok = ok && model.LegacyValidation.IsValidLabelName(l.Name)
		pairs = append(pairs, l.Name, l.Value)
	})
	return pairs, ok
}
