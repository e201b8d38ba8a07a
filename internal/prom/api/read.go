package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxReads is how many queries one remote read may have: the answers to all of them are in
// memory together. Each is at most as long as a query is.
const maxReads = 16

// readRequest reads a remote read, so that nobody has a turn who is slow to ask, and reports one that
// asks too much before it is unpacked.
func readRequest(r *http.Request) error {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := checkReadRequest(sent); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	return nil
}

// checkReadRequest reports a prometheus.ReadRequest, as it is sent, that is too long or has too many
// queries.
func checkReadRequest(sent []byte) error {
	n, err := snappy.DecodedLen(sent)
	if err != nil {
		return fmt.Errorf("the request is not packed by snappy: %w", err)
	}
	if n > maxBody {
		return fmt.Errorf("the request has %d bytes unpacked: at most %d", n, maxBody)
	}
	raw, err := snappy.Decode(nil, sent)
	if err != nil {
		return fmt.Errorf("the request is not packed by snappy: %w", err)
	}
	for queries := 0; len(raw) > 0; {
		number, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return fmt.Errorf("the request is no message of remote read: %w", protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, typ, raw[n:])
		if size < 0 {
			return fmt.Errorf("the request is no message of remote read: %w", protowire.ParseError(size))
		}
		if number == 1 { // queries
			if queries++; queries > maxReads {
				return fmt.Errorf("more than %d queries in one request: ask for the others in another one", maxReads)
			}
			if size > maxQueryBytes {
				return fmt.Errorf("a query of the request has %d bytes: at most %d", size, maxQueryBytes)
			}
		}
		raw = raw[n+size:]
	}
	return nil
}

// countSamples counts samples that a remote read holds until it is answered.
func (t *admission) countSamples(samples int) error {
	t.samples += samples
	if most := t.api.limits.readSamples; t.samples > most {
		t.err = limitError(fmt.Sprintf("more than %d samples: at most so many are read at once, by all queries of a request together", most),
			"read a shorter range, fewer series, or fewer queries at once, or let chunks be streamed (STREAMED_XOR_CHUNKS)", t.api.limits.Memory)
		return t.err
	}
	return nil
}

// checkEnded says why a remote read is not gone on with; nil is that it is.
func (t *admission) checkEnded(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	t.err = t.api.engine.explain(context.Cause(ctx))
	return t.err
}

// status is the status code of a remote read that failed, for which Prometheus has 500 whatever
// it is.
func (t *admission) status() int {
	var slow promql.ErrQueryTimeout
	switch {
	case t.err == nil:
		return http.StatusInternalServerError
	case errors.As(t.err, &slow):
		return http.StatusServiceUnavailable
	}
	return http.StatusUnprocessableEntity
}

// countedReadSeries is a series that a remote read holds.
type countedReadSeries struct {
	storage.Series
	set *countedSeriesSet
}

func (s countedReadSeries) Iterator(last chunkenc.Iterator) chunkenc.Iterator {
	if used, ok := last.(*countedIterator); ok {
		last = used.Iterator
	}
	return &countedIterator{s.Series.Iterator(last), s.set, 0}
}

// countedIterator are the samples of one, of which each is counted.
type countedIterator struct {
	chunkenc.Iterator
	set *countedSeriesSet
	n   int
}

func (r *countedIterator) Next() chunkenc.ValueType {
	if r.n++; r.n%1024 == 0 && r.set.err == nil {
		r.set.err = r.set.admission.checkEnded(r.set.ctx)
	}
	if r.set.err != nil {
		return chunkenc.ValNone
	}
	got := r.Iterator.Next()
	if got != chunkenc.ValNone {
		r.count(1)
	}
	if r.set.err != nil {
		return chunkenc.ValNone
	}
	return got
}

func (r *countedIterator) count(samples int) {
	if r.set.err == nil {
		r.set.err = r.set.admission.countSamples(samples)
	}
}

// histogramSamples is as how many samples a histogram counts: one is 48 bytes, and a histogram 272, 8 a
// bucket and 40 a span.
func histogramSamples(buckets, spans int) int { return (272 + 8*buckets + 40*spans) / 48 }

func (r *countedIterator) AtHistogram(into *histogram.Histogram) (int64, *histogram.Histogram) {
	at, h := r.Iterator.AtHistogram(into)
	r.count(histogramSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (r *countedIterator) AtFloatHistogram(into *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	at, h := r.Iterator.AtFloatHistogram(into)
	r.count(histogramSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (r *countedIterator) Err() error {
	if r.set.err != nil {
		return r.set.err
	}
	return r.Iterator.Err()
}

// streamedSeriesSet is a set of series whose chunks are sent as they are read: they are not held, and so
// not counted, but end when the request does.
type streamedSeriesSet struct {
	storage.ChunkSeriesSet
	ctx       context.Context
	admission *admission
	err       error
}

func endWithRequest(ctx context.Context, set storage.ChunkSeriesSet) storage.ChunkSeriesSet {
	t := admissionOf(ctx)
	if t == nil {
		return set
	}
	return &streamedSeriesSet{ChunkSeriesSet: set, ctx: ctx, admission: t}
}

func (s *streamedSeriesSet) Next() bool {
	if s.err == nil {
		s.err = s.admission.checkEnded(s.ctx)
	}
	return s.err == nil && s.ChunkSeriesSet.Next()
}

func (s *streamedSeriesSet) Err() error {
	if s.err != nil {
		return s.err
	}
	return s.ChunkSeriesSet.Err()
}
