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

// maxReads limits the queries of one remote read, because all answers are in memory
// together. Each query has at most maxQueryBytes.
const maxReads = 16

// readRequest reads the body of a remote read before it gets a turn, so that a slow client
// holds none, and rejects one that asks for too much.
func readRequest(r *http.Request) error {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("cannot read the request: %w", err)
	}
	if err := checkReadRequest(sent); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	return nil
}

// checkReadRequest rejects a snappy-compressed prometheus.ReadRequest that is too long or
// has too many queries, without unmarshaling it.
func checkReadRequest(sent []byte) error {
	n, err := snappy.DecodedLen(sent)
	if err != nil {
		return fmt.Errorf("the request is not snappy-compressed: %w", err)
	}
	if n > maxBody {
		return fmt.Errorf("the request has %d bytes uncompressed: at most %d", n, maxBody)
	}
	raw, err := snappy.Decode(nil, sent)
	if err != nil {
		return fmt.Errorf("the request is not snappy-compressed: %w", err)
	}
	for queries := 0; len(raw) > 0; {
		number, typ, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return fmt.Errorf("the request is not a remote read message: %w", protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(number, typ, raw[n:])
		if size < 0 {
			return fmt.Errorf("the request is not a remote read message: %w", protowire.ParseError(size))
		}
		if number == 1 { // queries
			if queries++; queries > maxReads {
				return fmt.Errorf("more than %d queries in one request: send the others in another request", maxReads)
			}
			if size > maxQueryBytes {
				return fmt.Errorf("a query of the request has %d bytes: at most %d", size, maxQueryBytes)
			}
		}
		raw = raw[n+size:]
	}
	return nil
}

// countSamples counts samples that a remote read holds in memory until it is answered.
func (a *admission) countSamples(samples int) error {
	a.samples += samples
	if most := a.api.limits.readSamples; a.samples > most {
		a.err = limitError(fmt.Sprintf("more than %d samples in all queries of one request", most),
			"read a shorter range, fewer series or fewer queries at once, or accept streamed chunks (STREAMED_XOR_CHUNKS)", a.api.limits.Memory)
		return a.err
	}
	return nil
}

// checkEnded returns the reason why a remote read has to stop, or nil.
func (a *admission) checkEnded(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	a.err = a.api.engine.explain(context.Cause(ctx))
	return a.err
}

// status returns the status code of a failed remote read, for which Prometheus's handler
// always answers 500.
func (a *admission) status() int {
	var slow promql.ErrQueryTimeout
	switch {
	case a.err == nil:
		return http.StatusInternalServerError
	case errors.As(a.err, &slow):
		return http.StatusServiceUnavailable
	}
	return http.StatusUnprocessableEntity
}

// countedReadSeries is a series of a remote read whose samples are counted.
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

// countedIterator counts each sample that it yields.
type countedIterator struct {
	chunkenc.Iterator
	set *countedSeriesSet
	n   int
}

func (it *countedIterator) Next() chunkenc.ValueType {
	if it.n++; it.n%1024 == 0 && it.set.err == nil {
		it.set.err = it.set.admission.checkEnded(it.set.ctx)
	}
	if it.set.err != nil {
		return chunkenc.ValNone
	}
	got := it.Iterator.Next()
	if got != chunkenc.ValNone {
		it.count(1)
	}
	if it.set.err != nil {
		return chunkenc.ValNone
	}
	return got
}

func (it *countedIterator) count(samples int) {
	if it.set.err == nil {
		it.set.err = it.set.admission.countSamples(samples)
	}
}

// histogramSamples returns the number of samples as which a histogram counts. A sample
// takes 48 bytes; a histogram takes 272, plus 8 per bucket and 40 per span.
func histogramSamples(buckets, spans int) int { return (272 + 8*buckets + 40*spans) / 48 }

func (it *countedIterator) AtHistogram(into *histogram.Histogram) (int64, *histogram.Histogram) {
	at, h := it.Iterator.AtHistogram(into)
	it.count(histogramSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (it *countedIterator) AtFloatHistogram(into *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	at, h := it.Iterator.AtFloatHistogram(into)
	it.count(histogramSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (it *countedIterator) Err() error {
	if it.set.err != nil {
		return it.set.err
	}
	return it.Iterator.Err()
}

// streamedSeriesSet is a set of series whose chunks are sent as they are read. They are not
// held in memory and not counted; the set ends with its request.
type streamedSeriesSet struct {
	storage.ChunkSeriesSet
	ctx       context.Context
	admission *admission
	err       error
}

func endWithRequest(ctx context.Context, set storage.ChunkSeriesSet) storage.ChunkSeriesSet {
	a := admissionOf(ctx)
	if a == nil {
		return set
	}
	return &streamedSeriesSet{ChunkSeriesSet: set, ctx: ctx, admission: a}
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
