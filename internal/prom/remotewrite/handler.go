package remotewrite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/x/httpx"
)

// What one request may have. Prometheus sends 2000 samples at once.
const (
	maxBody    = 8 << 20 // bytes, packed; unpacked they are 32 MiB at most
	maxSamples = 100_000
	maxSeries  = 20_000
	maxLabels  = 64
	maxLabel   = 4 << 10 // bytes of a name or of a value
	// maxAhead is how far a sample may be in the future. What the server itself
	// appends is looked for near the newest sample that there is.
	maxAhead  = 15 * time.Second
	maxAnswer = 16 << 10 // bytes of an answer; who wrote keeps less of it
)

// At most so many requests are unpacked at once, and others wait that long.
const (
	maxUnpacking  = 2
	unpackTimeout = 10 * time.Second
)

// A Handler takes what others write into the metrics: remote write 1.0 and 2.0. Each
// writes into one cluster, whatever its series say of it, and nothing under a name
// that is mete's own.
type Handler struct {
	next      http.Handler
	authorize func(*http.Request) (cluster string, err error)
	log       *slog.Logger
	tracker   *seriesTracker
	unpacking chan struct{} // has one for each request that is unpacked
	timeout   time.Duration

	accepted, refused atomic.Int64 // samples
}

// NewHandler returns the handler of a database. authorize says into which cluster who
// asks may write; its error says why nowhere.
func NewHandler(db storage.Appendable, authorize func(*http.Request) (string, error), log *slog.Logger) *Handler {
	// Its log would have a line for each sample that is refused.
	accepted := listOf(versions["1.0"], versions["2.0"])
	w := newSeriesTracker(maxClusterSeries)
	return &Handler{
		next:      remote.NewWriteHandler(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), scopedAppendable{db, w}, accepted, false, false, false),
		authorize: authorize, log: log, tracker: w, unpacking: make(chan struct{}, maxUnpacking), timeout: unpackTimeout,
	}
}

// listOf is a list of a type that has no name here.
func listOf[T any](of ...T) []T { return of }

// Counts are of samples, since the start.
type Counts struct{ Accepted, Refused int64 }

// Counts returns what was taken so far.
func (t *Handler) Counts() Counts { return Counts{t.accepted.Load(), t.refused.Load()} }

// ServeHTTP takes one request.
func (t *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "remote write is POST", http.StatusMethodNotAllowed)
		return
	}
	cluster, err := t.authorize(r)
	if err != nil {
		httpx.WriteProblem(w, fault.ProblemOf(err))
		return
	}
	one := &writeRequest{cluster: cluster}
	got := &bufferedReply{header: w.Header(), status: http.StatusOK}
	t.serve(got, w, r, one)
	t.refused.Add(one.refused)
	text := got.body.String()
	switch {
	case got.status/100 == 5:
	default:
		if one.committed {
			t.accepted.Add(one.accepted)
		}
		if one.err == nil {
			break
		}
		if errors.Is(one.err, errFull) && t.tracker.warnOnce(cluster) {
			t.log.Warn("a cluster has as many series of others in memory as it may: new ones are refused", "cluster", cluster, "err", one.err)
		}
		// What could be taken was; the rest would be refused again.
		const written = "X-Prometheus-Remote-Write-Samples-Written"
		if n, err := strconv.ParseInt(w.Header().Get(written), 10, 64); err == nil {
			w.Header().Set(written, strconv.FormatInt(max(0, n-one.refused), 10))
		}
		got.status, text = http.StatusBadRequest, fmt.Sprintf("%d samples were refused: %v\n%s", one.refused, one.err, text)
	}
	switch {
	case got.status/100 == 5:
		t.log.Error("series that were written are not kept", "cluster", cluster, "status", got.status, "err", text)
	case got.status/100 == 4: // anybody who may write can cause many
		t.log.Debug("series that were written are refused", "cluster", cluster, "status", got.status, "err", text)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(got.status)
	_, _ = w.Write([]byte(text)) // who went away asks again
}

// serve hands a request on to be taken, where it is not too much; w is who sends it.
func (t *Handler) serve(got *bufferedReply, w http.ResponseWriter, r *http.Request, one *writeRequest) {
	err := t.unpack(got, w, r, one)
	if no, ok := errors.AsType[refusal](err); ok {
		got.status = no.status
		_, _ = got.Write([]byte(no.text)) // it is kept in memory
	}
}

// unpack has the handler unpack a request once its size was estimated; its error is a refusal.
func (t *Handler) unpack(got *bufferedReply, w http.ResponseWriter, r *http.Request, one *writeRequest) error {
	of, kind, err := formatOf(r.Header)
	if err != nil {
		return err
	}
	sent, err := readBody(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), t.timeout)
	defer cancel()
	select {
	case t.unpacking <- struct{}{}:
		defer func() { <-t.unpacking }()
	case <-ctx.Done():
		httpx.SetRetryAfter(w, 5*time.Second)
		return newRefusal(http.StatusServiceUnavailable, "%d requests are unpacked at once, and none was done within %v: send this again later", maxUnpacking, t.timeout)
	}
	if err := checkSize(sent, of, time.Now().UnixMilli()); err != nil {
		return err
	}
	r = r.Clone(context.WithValue(r.Context(), writeRequestKey{}, one))
	r.Header.Set("Content-Type", kind)
	r.Body = newBody(sent)
	t.next.ServeHTTP(got, r)
	return nil
}

// A bufferedReply keeps an answer until it is known what became of it, and no more of it than is told.
type bufferedReply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *bufferedReply) Header() http.Header    { return r.header }
func (r *bufferedReply) WriteHeader(status int) { r.status = status }
func (r *bufferedReply) Write(b []byte) (int, error) {
	r.body.Write(b[:min(len(b), maxAnswer-r.body.Len())])
	return len(b), nil
}

// writeRequest is one request.
type writeRequest struct {
	cluster           string
	accepted, refused int64
	err               error
	committed         bool
}

type writeRequestKey struct{}

// scopedAppendable makes appenders that hold to the request in their context.
type scopedAppendable struct {
	storage.Appendable
	tracker *seriesTracker
}

func (i scopedAppendable) Appender(ctx context.Context) storage.Appender {
	one, _ := ctx.Value(writeRequestKey{}).(*writeRequest)
	return &appender{Appender: i.Appendable.Appender(ctx), request: one, tracker: i.tracker}
}

// An appender appends what a request may write, as series of its cluster.
type appender struct {
	storage.Appender
	request *writeRequest
	tracker *seriesTracker
	key     uint64 // in written, of the series that was admitted last
}

// admit returns the labels under which a sample is appended; false is that it is not,
// which is counted.
func (a *appender) admit(ls labels.Labels, at int64) (labels.Labels, bool, error) {
	one := a.request
	if one == nil {
		return ls, false, errors.New("remote: a request of nobody")
	}
	err := checkSeries(ls)
	if ahead := time.Until(time.UnixMilli(at)); err == nil && ahead > maxAhead {
		err = fmt.Errorf("a sample of %.100q is %v in the future; look at the clocks", ls.Get(model.MetricNameLabel), ahead.Round(time.Second))
	}
	ls = labels.NewBuilder(ls).Set(metric.Cluster, one.cluster).Labels()
	if err == nil {
		a.key = a.tracker.key(ls)
		err = a.tracker.admit(one.cluster, a.key, ls, time.Now())
	}
	if err != nil {
		one.refused++
		one.err = err
		return ls, false, nil
	}
	return ls, true, nil
}

// checkSeries says why a series is not taken.
func checkSeries(ls labels.Labels) (err error) {
	name := ls.Get(model.MetricNameLabel)
	switch {
	case strings.HasPrefix(name, "mete_") || strings.Contains(name, ":mete_") || strings.HasPrefix(name, "ALERTS"):
		return fmt.Errorf("%.100q is a name of mete's own series; leave it out with write_relabel_configs", name)
	case ls.Len() > maxLabels:
		return fmt.Errorf("a series of %.100q has %d labels, and at most %d are taken", name, ls.Len(), maxLabels)
	}
	ls.Range(func(l labels.Label) {
		if len(l.Name) > maxLabel || len(l.Value) > maxLabel {
			err = fmt.Errorf("label %.100q of %.100q is longer than %d bytes", l.Name, name, maxLabel)
		}
	})
	return err
}

func (a *appender) Append(ref storage.SeriesRef, ls labels.Labels, at int64, v float64) (storage.SeriesRef, error) {
	ls, ok, err := a.admit(ls, at)
	if !ok {
		return 0, err
	}
	ref, err = a.Appender.Append(ref, ls, at, v)
	return a.count(ls, ref, err)
}

func (a *appender) AppendHistogram(ref storage.SeriesRef, ls labels.Labels, at int64, h *histogram.Histogram, fh *histogram.FloatHistogram) (storage.SeriesRef, error) {
	ls, ok, err := a.admit(ls, at)
	if !ok {
		return 0, err
	}
	ref, err = a.Appender.AppendHistogram(ref, ls, at, h, fh)
	return a.count(ls, ref, err)
}

// count counts what was appended, and what the database refuses for good: the handler
// would keep an error with all labels for each of these.
func (a *appender) count(ls labels.Labels, ref storage.SeriesRef, err error) (storage.SeriesRef, error) {
	switch {
	case err == nil:
		a.request.accepted++
		a.tracker.note(a.request.cluster, a.key, time.Now())
		return ref, nil
	case !isPermanent(err):
		return ref, err
	}
	a.request.refused++
	a.request.err = fmt.Errorf("a sample of %.100q: %w", ls.Get(model.MetricNameLabel), err)
	return 0, nil
}

// isPermanent says whether a sample would be refused again.
func isPermanent(err error) bool {
	var wrong histogram.Error
	return errors.Is(err, storage.ErrOutOfOrderSample) || errors.Is(err, storage.ErrOutOfBounds) || errors.Is(err, storage.ErrDuplicateSampleForTimestamp) ||
		errors.Is(err, storage.ErrTooOldSample) || errors.As(err, &wrong)
}

// Commit implements storage.Appender.
func (a *appender) Commit() error {
	err := a.Appender.Commit()
	if a.request != nil {
		a.request.committed = err == nil
	}
	return err
}

// Of exemplars, metadata and start times nothing is kept.

func (a *appender) AppendExemplar(ref storage.SeriesRef, _ labels.Labels, _ exemplar.Exemplar) (storage.SeriesRef, error) {
	return ref, nil
}

func (a *appender) UpdateMetadata(ref storage.SeriesRef, _ labels.Labels, _ metadata.Metadata) (storage.SeriesRef, error) {
	return ref, nil
}

func (a *appender) AppendSTZeroSample(ref storage.SeriesRef, _ labels.Labels, _, _ int64) (storage.SeriesRef, error) {
	return ref, nil
}

func (a *appender) AppendHistogramSTZeroSample(ref storage.SeriesRef, _ labels.Labels, _, _ int64, _ *histogram.Histogram, _ *histogram.FloatHistogram) (storage.SeriesRef, error) {
	return ref, nil
}
