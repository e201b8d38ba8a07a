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

// arrived reads a remote read, so that nobody has a turn who is slow to ask, and reports one that
// asks too much before it is unpacked.
func arrived(r *http.Request) error {
	sent, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := fewReads(sent); err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(sent))
	return nil
}

// fewReads reports a prometheus.ReadRequest, as it is sent, that is too long or has too many
// queries.
func fewReads(sent []byte) error {
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
			if size > longest {
				return fmt.Errorf("a query of the request has %d bytes: at most %d", size, longest)
			}
		}
		raw = raw[n+size:]
	}
	return nil
}

// hold counts samples that a remote read holds until it is answered.
func (t *ticket) hold(samples int) error {
	t.samples += samples
	if most := t.a.limits.read; t.samples > most {
		t.over = tooMuch(fmt.Sprintf("more than %d samples: at most so many are read at once, by all queries of a request together", most),
			"read a shorter range, fewer series, or fewer queries at once, or let chunks be streamed (STREAMED_XOR_CHUNKS)", t.a.limits.Memory)
		return t.over
	}
	return nil
}

// ended says why a remote read is not gone on with; nil is that it is.
func (t *ticket) ended(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	t.over = t.a.engines.explain(context.Cause(ctx))
	return t.over
}

// status is the status code of a remote read that failed, for which Prometheus has 500 whatever
// it is.
func (t *ticket) status() int {
	var slow promql.ErrQueryTimeout
	switch {
	case t.over == nil:
		return http.StatusInternalServerError
	case errors.As(t.over, &slow):
		return http.StatusServiceUnavailable
	}
	return http.StatusUnprocessableEntity
}

// readSeries is a series that a remote read holds.
type readSeries struct {
	storage.Series
	of *counting
}

func (s readSeries) Iterator(last chunkenc.Iterator) chunkenc.Iterator {
	if used, ok := last.(*readSamples); ok {
		last = used.Iterator
	}
	return &readSamples{s.Series.Iterator(last), s.of, 0}
}

// readSamples are the samples of one, of which each is counted.
type readSamples struct {
	chunkenc.Iterator
	of *counting
	n  int
}

func (r *readSamples) Next() chunkenc.ValueType {
	if r.n++; r.n%1024 == 0 && r.of.err == nil {
		r.of.err = r.of.t.ended(r.of.ctx)
	}
	if r.of.err != nil {
		return chunkenc.ValNone
	}
	got := r.Iterator.Next()
	if got != chunkenc.ValNone {
		r.hold(1)
	}
	if r.of.err != nil {
		return chunkenc.ValNone
	}
	return got
}

func (r *readSamples) hold(samples int) {
	if r.of.err == nil {
		r.of.err = r.of.t.hold(samples)
	}
}

// asSamples is as how many samples a histogram counts: one is 48 bytes, and a histogram 272, 8 a
// bucket and 40 a span.
func asSamples(buckets, spans int) int { return (272 + 8*buckets + 40*spans) / 48 }

func (r *readSamples) AtHistogram(into *histogram.Histogram) (int64, *histogram.Histogram) {
	at, h := r.Iterator.AtHistogram(into)
	r.hold(asSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (r *readSamples) AtFloatHistogram(into *histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	at, h := r.Iterator.AtFloatHistogram(into)
	r.hold(asSamples(len(h.PositiveBuckets)+len(h.NegativeBuckets), len(h.PositiveSpans)+len(h.NegativeSpans)))
	return at, h
}

func (r *readSamples) Err() error {
	if r.of.err != nil {
		return r.of.err
	}
	return r.Iterator.Err()
}

// streaming is a set of series whose chunks are sent as they are read: they are not held, and so
// not counted, but end when the request does.
type streaming struct {
	storage.ChunkSeriesSet
	ctx context.Context
	t   *ticket
	err error
}

func endingSet(ctx context.Context, set storage.ChunkSeriesSet) storage.ChunkSeriesSet {
	t := ticketOf(ctx)
	if t == nil {
		return set
	}
	return &streaming{ChunkSeriesSet: set, ctx: ctx, t: t}
}

func (s *streaming) Next() bool {
	if s.err == nil {
		s.err = s.t.ended(s.ctx)
	}
	return s.err == nil && s.ChunkSeriesSet.Next()
}

func (s *streaming) Err() error {
	if s.err != nil {
		return s.err
	}
	return s.ChunkSeriesSet.Err()
}
