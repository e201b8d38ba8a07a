package receiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// maxLossBody is how large a word that batches are lost may be.
const maxLossBody = 64 << 10

// Handler serves POST /v1/batches and POST /v1/lost. identify says which node a
// request is from; its error is answered with 403 where it wraps
// fault.ErrDenied, with 503 where it wraps fault.ErrUnavailable, else with 401.
//
// Each answer states what the server reads, in wire.HeaderReads. Verdicts are
// answered with 200 (taken, known) and 409 (behind, conflict,
// clone), errors as problems (RFC 9457). Nothing of a request's body gets into
// the log.
func (rc *Receiver) Handler(identify func(*http.Request) (node string, err error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/batches", &endpoint{rc, identify, wire.MediaType, int64(rc.cfg.Limits.Sent), rc.postBatch})
	mux.Handle("/v1/lost", &endpoint{rc, identify, "application/json", maxLossBody, rc.postLoss})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpx.WriteProblem(w, fault.Problem{Title: "not found", Status: http.StatusNotFound, Hint: "agents send to /v1/batches and /v1/lost"})
	})
	return httpx.WithHeader(wire.HeaderReads, wire.LatestFormat().String(), mux)
}

func (rc *Receiver) postBatch(r *http.Request, node string, body []byte) (batch.Reply, error) {
	c := batch.Clock{Boot: r.Header.Get(wire.HeaderBoot)}
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

// endpoint takes the requests for one path.
type endpoint struct {
	rc        *Receiver
	identify  func(*http.Request) (string, error)
	mediaType string // media type
	maxBody   int64  // bytes of a body
	handle    func(r *http.Request, node string, body []byte) (batch.Reply, error)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// It also bounds how long the server waits for the rest of a body that
	// nobody read.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(e.rc.cfg.IdleTimeout)) // a writer without one is a test's
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		httpx.WriteProblem(w, fault.Problem{Title: "method not allowed", Status: http.StatusMethodNotAllowed})
		return
	}
	node, err := e.identify(r)
	if err != nil {
		httpx.WriteProblem(w, identityProblem(err))
		return
	}
	leave, wait := e.rc.admit(node, time.Now())
	if leave == nil {
		httpx.SetRetryAfter(w, wait)
		httpx.WriteProblem(w, fault.Problem{Title: "too many requests", Detail: "this node asks too much at once", Status: http.StatusTooManyRequests})
		return
	}
	defer leave()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != e.mediaType || r.Header.Get("Content-Encoding") != "" {
		httpx.WriteProblem(w, fault.Problem{Title: "unsupported media type", Detail: "the body has to be " + e.mediaType + " without a content encoding", Status: http.StatusUnsupportedMediaType})
		return
	}
	body, give, err := e.read(w, r)
	defer give()
	if err != nil {
		e.fail(w, node, err)
		return
	}
	reply, err := e.handle(r, node, body)
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

// admit counts a request of a node in, or says how long it should stay away.
func (rc *Receiver) admit(node string, now time.Time) (leave func(), wait time.Duration) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	o := rc.nodeState(node)
	wait = time.Second
	if o.inFlight < rc.cfg.Parallel {
		wait = o.bucket.take(now, rc.cfg.Rate, rc.cfg.Burst)
	}
	if wait > 0 {
		rc.stats.RateLimited++
		return nil, wait
	}
	o.inFlight++
	return func() {
		rc.mu.Lock()
		defer rc.mu.Unlock()
		o.inFlight--
	}, 0
}

// Errors of a request that no kind says.
var (
	errTooLarge = errors.New("the body is too large")
	errTooSlow  = errors.New("the body came too slowly")
)

// read reads a request's body, as far as there is room for it. What give gives
// back is held until then.
func (e *endpoint) read(w http.ResponseWriter, r *http.Request) (body []byte, give func(), err error) {
	room := e.maxBody
	if r.ContentLength >= 0 {
		room = r.ContentLength
	}
	if room > e.maxBody {
		return nil, func() {}, errTooLarge
	}
	n := e.rc.queueFor(room)
	give = func() { n.bodyBytes.Add(-room) }
	if n.bodyBytes.Add(room) > n.maxBodyBytes || n.isFull() {
		return nil, give, newRetryError("too many requests at once")
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(room) + bytes.MinRead)
	}
	src := &deadlineReader{r.Body, http.NewResponseController(w), e.rc.cfg.IdleTimeout, time.Now().Add(e.rc.cfg.RequestTimeout)}
	_, err = b.ReadFrom(io.LimitReader(src, e.maxBody+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, give, errTooSlow
	case err != nil:
		return nil, give, fmt.Errorf("body: %w: %w", fault.ErrUnavailable, err)
	case int64(b.Len()) > e.maxBody:
		return nil, give, errTooLarge
	}
	return b.Bytes(), give, nil
}

// deadlineReader waits for each piece of a body for a while, and not for ever for all.
type deadlineReader struct {
	io.Reader
	*http.ResponseController
	idle time.Duration
	end  time.Time
}

func (p *deadlineReader) Read(b []byte) (int, error) {
	until := time.Now().Add(p.idle)
	if until.After(p.end) {
		until = p.end
	}
	_ = p.SetReadDeadline(until)
	return p.Reader.Read(b)
}

// fail answers an error.
func (e *endpoint) fail(w http.ResponseWriter, node string, err error) {
	var p fault.Problem
	switch {
	case errors.Is(err, errTooLarge):
		p = fault.Problem{Title: "content too large", Detail: fmt.Sprintf("a body may have %d bytes", e.maxBody), Status: http.StatusRequestEntityTooLarge}
		w.Header().Set("Connection", "close")
	case errors.Is(err, errTooSlow):
		p = fault.Problem{Title: "request timeout", Detail: err.Error(), Status: http.StatusRequestTimeout}
		w.Header().Set("Connection", "close")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		p = fault.ProblemOf(newRetryError("the request was given up"))
		httpx.SetRetryAfter(w, time.Second)
	default:
		p = fault.ProblemOf(err)
	}
	if p.Status == http.StatusServiceUnavailable {
		wait := 5 * time.Second
		if after, ok := fault.RetryAfter(err); ok {
			wait = after
		} else if errors.Is(err, wire.ErrNewer) {
			wait = time.Minute // for somebody to upgrade this server
		}
		httpx.SetRetryAfter(w, wait)
	}
	e.rc.warn(node, "request refused", "status", p.Status)
	httpx.WriteProblem(w, p)
}

// warn logs what a node is told, once a minute: an agent that is refused tries
// again.
func (rc *Receiver) warn(node, message string, args ...any) {
	now := time.Now()
	rc.mu.Lock()
	o := rc.nodeState(node)
	quiet := now.Sub(o.warned) < time.Minute
	if !quiet {
		o.warned = now
	}
	rc.mu.Unlock()
	if !quiet {
		rc.log.Warn(message, append([]any{"node", node}, args...)...)
	}
}

// identityProblem is the answer to one who is not known.
func identityProblem(err error) fault.Problem {
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		return fault.ProblemOf(err)
	}
	return fault.Problem{Title: "not identified", Detail: err.Error(), Status: http.StatusUnauthorized, Hint: fault.Hint(err)}
}
