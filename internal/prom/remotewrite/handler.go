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

// Limits of one request. Prometheus sends 2000 samples at once.
const (
	maxBody        = 8 << 20 // bytes, compressed; uncompressed they are 32 MiB at most
	maxSamples     = 100_000
	maxSeries      = 20_000
	maxLabels      = 64
	maxLabel       = 4 << 10 // bytes of a name or of a value
	maxLabelsBytes = 8 << 10 // bytes of all names and values of a series, which stay in memory for hours
	// maxAhead is how far a sample may be in the future: the server searches for its own samples
	// near the newest sample of the database.
	maxAhead  = 15 * time.Second
	maxAnswer = 16 << 10 // bytes of an answer; clients keep less of it
)

// Bytes of the bodies that are held at once, and of the bodies of one cluster. Prometheus sends some hundred
// kB in each of up to 50 requests.
const (
	maxBodies        = 64 << 20
	maxClusterBodies = maxBodies / 2
)

const (
	maxUnpacking  = 2                // requests that are unpacked at once
	unpackTimeout = 10 * time.Second // for which another request waits
)

// A Handler takes series that other systems write into the metrics, by remote write 1.0 and 2.0.
// Each client writes into one cluster, whatever cluster its series name, and under no name of
// mete's own series.
type Handler struct {
	next      http.Handler
	authorize func(*http.Request) (cluster string, err error)
	log       *slog.Logger
	tracker   *seriesTracker
	bodies    *httpx.Bodies
	unpacking chan struct{} // holds an element for each request that is being unpacked
	timeout   time.Duration

	accepted, refused atomic.Int64 // samples
}

// NewHandler returns the handler of a database. authorize returns the cluster into which the
// client of a request may write, or an error if it may not write.
func NewHandler(db storage.Appendable, authorize func(*http.Request) (string, error), log *slog.Logger) *Handler {
	accepted := listOf(versions["1.0"], versions["2.0"])
	tracker := newSeriesTracker(maxClusterSeries, maxClusterBytes)
	return &Handler{
		// Its log, which is discarded, would have a line for each refused sample.
		next:      remote.NewWriteHandler(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), scopedAppendable{db, tracker}, accepted, false, false, false),
		authorize: authorize, log: log, tracker: tracker, bodies: httpx.NewBodies(maxBodies, maxClusterBodies), unpacking: make(chan struct{}, maxUnpacking), timeout: unpackTimeout,
	}
}

// listOf returns its arguments as a slice: their type has no name outside of Prometheus.
func listOf[T any](of ...T) []T { return of }

// Counts are numbers of samples since the start.
type Counts struct{ Accepted, Refused int64 }

// Counts returns the present counts.
func (h *Handler) Counts() Counts { return Counts{h.accepted.Load(), h.refused.Load()} }

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if httpx.CheckMethod(w, r, http.MethodPost) != nil {
		http.Error(w, "remote write is POST", http.StatusMethodNotAllowed)
		return
	}
	cluster, err := h.authorize(r)
	if err != nil {
		httpx.WriteProblem(w, fault.ProblemOf(err))
		return
	}
	one := &writeRequest{cluster: cluster}
	reply := &bufferedReply{header: w.Header(), status: http.StatusOK}
	h.serve(reply, w, r, one)
	h.refused.Add(one.refused)
	text := reply.body.String()
	switch {
	case one.unavailable != nil:
		httpx.SetRetryAfter(w, time.Minute)
		reply.status, text = http.StatusServiceUnavailable, one.unavailable.Error()
	case reply.status/100 == 5:
	default:
		if one.committed {
			h.accepted.Add(one.accepted)
		}
		if one.err == nil {
			break
		}
		if errors.Is(one.err, errFull) && h.tracker.warnOnce(cluster) {
			h.log.Warn("a cluster has as many series of other systems, or bytes of their labels, as may be in memory: new ones are refused", "cluster", cluster, "err", one.err)
		}
		// The other samples were taken; those that were refused would be refused again.
		const written = "X-Prometheus-Remote-Write-Samples-Written"
		if n, err := strconv.ParseInt(w.Header().Get(written), 10, 64); err == nil {
			w.Header().Set(written, strconv.FormatInt(max(0, n-one.refused), 10))
		}
		reply.status, text = http.StatusBadRequest, fmt.Sprintf("%d samples were refused: %v\n%s", one.refused, one.err, text)
	}
	switch {
	case reply.status/100 == 5 && reply.status != http.StatusServiceUnavailable:
		h.log.Error("remote write failed", "cluster", cluster, "status", reply.status, "err", text)
	case reply.status/100 >= 4: // at level debug, as any client can cause many
		h.log.Debug("remote write refused", "cluster", cluster, "status", reply.status, "err", text)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(reply.status)
	_, _ = w.Write([]byte(text)) // a client that has gone away sends the request again
}

// serve writes the answer to a request into reply; w is the connection's writer.
func (h *Handler) serve(reply *bufferedReply, w http.ResponseWriter, r *http.Request, one *writeRequest) {
	err := h.unpack(reply, w, r, one)
	if no, ok := errors.AsType[refusal](err); ok {
		reply.status = no.status
		_, _ = reply.Write([]byte(no.text)) // into memory
	}
}

// unpack estimates the size of a request, and passes it to Prometheus's handler, which unpacks
// it. Its error is a refusal.
func (h *Handler) unpack(reply *bufferedReply, w http.ResponseWriter, r *http.Request, one *writeRequest) error {
	spec, mediaType, err := formatOf(r.Header)
	if err != nil {
		return err
	}
	release, ok := h.bodies.Take(r, one.cluster, maxBody)
	if !ok {
		httpx.SetRetryAfter(w, time.Second)
		return newRefusal(http.StatusServiceUnavailable, "requests of cluster %s, or of all, have too many bytes at once: send this again later", one.cluster)
	}
	defer release()
	sent, err := readBody(w, r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.timeout)
	defer cancel()
	select {
	case h.unpacking <- struct{}{}:
		defer func() { <-h.unpacking }()
	case <-ctx.Done():
		httpx.SetRetryAfter(w, 5*time.Second)
		return newRefusal(http.StatusServiceUnavailable, "%d requests are unpacked at once, and none was done within %v: send this again later", maxUnpacking, h.timeout)
	}
	if err := checkSize(sent, spec, time.Now().UnixMilli()); err != nil {
		return err
	}
	r = r.Clone(context.WithValue(r.Context(), writeRequestKey{}, one))
	r.Header.Set("Content-Type", mediaType)
	r.Body = newBody(sent)
	h.next.ServeHTTP(reply, r)
	return nil
}

// A bufferedReply holds the answer of Prometheus's handler, of which at most maxAnswer bytes,
// until the outcome of the request is known.
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

// A writeRequest is the state of one request.
type writeRequest struct {
	cluster           string
	accepted, refused int64 // samples
	err               error // why the latest sample was refused
	committed         bool
	unavailable       error // why the database takes nothing now
}

type writeRequestKey struct{}

// scopedAppendable makes appenders for the writeRequest in their context.
type scopedAppendable struct {
	storage.Appendable
	tracker *seriesTracker
}

func (s scopedAppendable) Appender(ctx context.Context) storage.Appender {
	one, _ := ctx.Value(writeRequestKey{}).(*writeRequest)
	return &appender{Appender: s.Appendable.Appender(ctx), request: one, tracker: s.tracker}
}

// An appender appends the samples that a request may write, as series of its cluster.
type appender struct {
	storage.Appender
	request *writeRequest
	tracker *seriesTracker
}

// admit returns the labels under which a sample is appended, or false if it is refused, and
// counts it then.
func (a *appender) admit(ls labels.Labels, at int64) (labels.Labels, bool, error) {
	one := a.request
	if one == nil {
		return ls, false, errors.New("remotewrite: no request in the context")
	}
	err := checkSeries(ls)
	if ahead := time.Until(time.UnixMilli(at)); err == nil && ahead > maxAhead {
		err = fmt.Errorf("a sample of %.100q is %v in the future; look at the clocks", ls.Get(model.MetricNameLabel), ahead.Round(time.Second))
	}
	ls = labels.NewBuilder(ls).Set(metric.Cluster, one.cluster).Labels()
	if err == nil {
		err = a.tracker.admit(one.cluster, ls, time.Now())
	}
	if err != nil {
		one.refused++
		one.err = err
		return ls, false, nil
	}
	return ls, true, nil
}

// checkSeries returns an error if series of these labels are not taken.
func checkSeries(ls labels.Labels) (err error) {
	name := ls.Get(model.MetricNameLabel)
	switch {
	case strings.HasPrefix(name, "mete_") || strings.Contains(name, ":mete_") || strings.HasPrefix(name, "ALERTS"):
		return fmt.Errorf("%.100q is a name of mete's own series; leave it out with write_relabel_configs", name)
	case ls.Len() > maxLabels:
		return fmt.Errorf("a series of %.100q has %d labels, and at most %d are taken", name, ls.Len(), maxLabels)
	}
	if n := labelBytes(ls); n > maxLabelsBytes {
		return fmt.Errorf("the labels of a series of %.100q have %d bytes, and at most %d are taken; shorten or drop some with write_relabel_configs", name, n, maxLabelsBytes)
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

// count counts a sample that was appended, or that the database refuses permanently. It hides
// the error of the latter: Prometheus's handler would keep one with all labels for each.
func (a *appender) count(ls labels.Labels, ref storage.SeriesRef, err error) (storage.SeriesRef, error) {
	switch {
	case err == nil:
		a.request.accepted++
		return ref, nil
	case !isPermanent(err):
		if errors.Is(err, fault.ErrUnavailable) {
			a.request.unavailable = err
		}
		return ref, err
	}
	a.request.refused++
	a.request.err = fmt.Errorf("a sample of %.100q: %w", ls.Get(model.MetricNameLabel), err)
	return 0, nil
}

// isPermanent reports whether the database would refuse a sample again.
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

// Exemplars, metadata and start times are not stored.

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
