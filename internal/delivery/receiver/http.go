package receiver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
	"mete.dev/mete/internal/x/text"
)

const (
	maxLossBody = 64 << 10        // bytes of a report of lost batches
	retryDelay  = 5 * time.Second // of a request that may be booked later
	// upgradeDelay is the delay of an agent that is newer than this server.
	upgradeDelay = time.Minute
)

// Handler serves POST /v1/batches and POST /v1/lost. identify returns the node that sends a
// request; its error is answered with 403 if it wraps fault.ErrDenied, with 503 if it wraps
// fault.ErrUnavailable, else with 401.
//
// Each answer states what the server reads, in wire.HeaderReads. Verdicts are answered with
// 200 (taken, known) and 409 (behind, conflict, clone), errors as problems (RFC 9457). Nothing
// of a request's body gets into the log.
func (rc *Receiver) Handler(identify func(*http.Request) (node, cluster string, err error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/batches", &endpoint{rc, identify, wire.MediaType, int64(rc.cfg.Limits.Sent), rc.postBatch})
	mux.Handle("/v1/lost", &endpoint{rc, identify, "application/json", maxLossBody, rc.postLoss})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpx.WriteProblem(w, fault.Problem{Title: "not found", Status: http.StatusNotFound, Hint: "agents send to /v1/batches and /v1/lost"})
	})
	return httpx.WithHeader(wire.HeaderReads, wire.LatestFormat().String(), mux)
}

func (rc *Receiver) postBatch(r *http.Request, node string, body []byte) (batch.Reply, error) {
	c := batch.Clock{Boot: r.Header.Get(wire.HeaderBoot), Earlier: wire.ParseBoots(r.Header.Get(wire.HeaderBoots))}
	var err, err2 error
	c.Boottime, err = strconv.ParseInt(r.Header.Get(wire.HeaderBoottime), 10, 64)
	c.Wall, err2 = strconv.ParseInt(r.Header.Get(wire.HeaderWall), 10, 64)
	if c.Boot == "" || err != nil || err2 != nil {
		return batch.Reply{}, fmt.Errorf("headers %s, %s and %s: %w", wire.HeaderBoot, wire.HeaderBoottime, wire.HeaderWall, fault.ErrInvalid)
	}
	if used, limit, ok := wire.ParseSpool(r.Header.Get(wire.HeaderSpool)); ok {
		rc.mu.Lock()
		rc.nodeState(node).spool = SpoolUsage{used, limit}
		rc.mu.Unlock()
	}
	return rc.Offer(r.Context(), node, c, body)
}

func (rc *Receiver) postLoss(r *http.Request, node string, body []byte) (batch.Reply, error) {
	var l batch.Loss
	if err := json.Unmarshal(body, &l); err != nil {
		return batch.Reply{}, fmt.Errorf("lost: %w: %w", err, fault.ErrInvalid)
	}
	return rc.ReportLoss(r.Context(), node, l)
}

// endpoint serves one path.
type endpoint struct {
	rc        *Receiver
	identify  func(*http.Request) (node, cluster string, err error)
	mediaType string
	maxBody   int64 // bytes of a body
	handle    func(r *http.Request, node string, body []byte) (batch.Reply, error)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	httpx.SetReadTimeout(w, e.rc.cfg.IdleTimeout)
	if err := httpx.CheckMethod(w, r, http.MethodPost); err != nil {
		httpx.Fail(w, err)
		return
	}
	node, cluster, err := e.identify(r)
	if err != nil {
		httpx.Fail(w, httpx.Unidentified(err))
		return
	}
	release, err := e.rc.admit(node, time.Now())
	if err != nil {
		httpx.Fail(w, err)
		return
	}
	defer release()
	if err := httpx.CheckMediaType(r, e.mediaType); err != nil {
		httpx.Fail(w, err)
		return
	}
	body, releaseBody, err := e.read(w, r, cluster)
	defer releaseBody()
	if err != nil {
		e.fail(w, node, err)
		return
	}
	reply, err := e.handle(r, node, body)
	if err != nil && len(body) == 0 {
		httpx.Fail(w, err) // an agent asks by an empty batch what this server reads
		return
	}
	if err != nil {
		e.fail(w, node, err)
		return
	}
	status := http.StatusOK
	if reply.Verdict != batch.Accepted && reply.Verdict != batch.Duplicate {
		status = http.StatusConflict
		e.rc.warn(node, "batch not taken", "verdict", reply.Verdict.String())
	}
	httpx.WriteJSON(w, status, reply)
}

// admit counts a request of a node as being served until release is called. The error is
// httpx.ErrTooMany, with the time that the node has to wait.
func (rc *Receiver) admit(node string, now time.Time) (release func(), err error) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	s := rc.nodeState(node)
	wait := time.Second
	if s.inFlight < rc.cfg.Parallel {
		wait = rc.limiter.Take(node, now)
	}
	if wait > 0 {
		rc.stats.RateLimited++
		err := httpx.WithStatus(errors.New("this node sends too many requests at once"), httpx.ErrTooMany)
		return nil, &fault.RetryError{Err: err, After: wait}
	}
	s.inFlight++
	return func() {
		rc.mu.Lock()
		defer rc.mu.Unlock()
		s.inFlight--
	}, nil
}

// read reads a request's body if there is room for it, which it holds until release is called.
func (e *endpoint) read(w http.ResponseWriter, r *http.Request, cluster string) (body []byte, release func(), err error) {
	size := e.maxBody
	if r.ContentLength >= 0 {
		size = r.ContentLength
	}
	release = func() {}
	if size <= e.maxBody { // else it is refused unread
		q := e.rc.queueFor(uint64(size))
		held, ok := q.bodies.Take(r, cluster, size)
		if ok {
			release = held
		}
		if !ok || q.isFull() {
			return nil, release, newRetryError("too many requests at once")
		}
	}
	body, err = httpx.ReadBody(w, r, e.maxBody, e.rc.cfg.IdleTimeout, e.rc.cfg.RequestTimeout)
	return body, release, err
}

// fail answers an error.
func (e *endpoint) fail(w http.ResponseWriter, node string, err error) {
	wait := retryDelay
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("receiver: the request was canceled: %w", fault.ErrUnavailable)
	case errors.Is(err, wire.ErrNewer):
		wait = upgradeDelay
	}
	p := httpx.ProblemOf(err)
	e.rc.warn(node, "request refused", "status", p.Status, "err", text.Cut(p.Detail, maxLogged))
	httpx.Fail(w, httpx.RetryLater(err, wait))
}

// maxLogged is how many bytes of an error are in the log: a node chooses some of them.
const maxLogged = 200

// warn logs what a node is answered, once a minute for each node.
func (rc *Receiver) warn(node, message string, args ...any) {
	if rc.logLimiter.Allow(node, time.Now()) {
		rc.log.Warn(message, append([]any{"node", node}, args...)...)
	}
}
