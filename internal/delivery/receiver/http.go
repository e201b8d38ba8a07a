package receiver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
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

// lostLimit is how large a word that batches are lost may be.
const lostLimit = 64 << 10

// Handler serves POST /v1/batches and POST /v1/lost. identify says which node a
// request is from; its error is answered with 403 where it wraps
// fault.ErrDenied, with 503 where it wraps fault.ErrUnavailable, else with 401.
//
// Each answer states what the server reads, in wire.HeaderReads. Verdicts are
// answered with 200 (taken, known) and 409 (behind, conflict,
// clone), errors as problems (RFC 9457). Nothing of a request's body gets into
// the log.
func (in *Receiver) Handler(identify func(*http.Request) (node string, err error)) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/v1/batches", &endpoint{in, identify, wire.MediaType, int64(in.cfg.Limits.Sent), in.postBatch})
	mux.Handle("/v1/lost", &endpoint{in, identify, "application/json", lostLimit, in.postLost})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		httpx.Problem(w, fault.Problem{Title: "not found", Status: http.StatusNotFound, Hint: "agents send to /v1/batches and /v1/lost"})
	})
	return httpx.WithHeader(wire.HeaderReads, wire.Latest().String(), mux)
}

func (in *Receiver) postBatch(r *http.Request, node string, body []byte) (batch.Reply, error) {
	c := batch.Clock{Boot: r.Header.Get(wire.HeaderBoot)}
	var err, err2 error
	c.Boottime, err = strconv.ParseInt(r.Header.Get(wire.HeaderBoottime), 10, 64)
	c.Wall, err2 = strconv.ParseInt(r.Header.Get(wire.HeaderWall), 10, 64)
	if c.Boot == "" || err != nil || err2 != nil {
		return batch.Reply{}, fmt.Errorf("headers %s, %s and %s: %w", wire.HeaderBoot, wire.HeaderBoottime, wire.HeaderWall, fault.ErrInvalid)
	}
	if used, limit, ok := wire.ParseSpool(r.Header.Get(wire.HeaderSpool)); ok {
		in.mu.Lock()
		in.origin(node).spool = Spool{used, limit}
		in.mu.Unlock()
	}
	return in.Offer(r.Context(), node, c, body)
}

func (in *Receiver) postLost(r *http.Request, node string, body []byte) (batch.Reply, error) {
	var l batch.Lost
	if err := json.Unmarshal(body, &l); err != nil {
		return batch.Reply{}, fmt.Errorf("lost: %w: %w", err, fault.ErrInvalid)
	}
	return in.Lost(r.Context(), node, l)
}

// endpoint takes the requests for one path.
type endpoint struct {
	in       *Receiver
	identify func(*http.Request) (string, error)
	kind     string // media type
	limit    int64  // bytes of a body
	take     func(r *http.Request, node string, body []byte) (batch.Reply, error)
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// It also bounds how long the server waits for the rest of a body that
	// nobody read.
	deadline := http.NewResponseController(w)
	_ = deadline.SetReadDeadline(time.Now().Add(e.in.cfg.Idle)) // a writer without one is a test's
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		httpx.Problem(w, fault.Problem{Title: "method not allowed", Status: http.StatusMethodNotAllowed})
		return
	}
	node, err := e.identify(r)
	if err != nil {
		httpx.Problem(w, stranger(err))
		return
	}
	leave, wait := e.in.enter(node, time.Now())
	if leave == nil {
		retry(w, wait)
		httpx.Problem(w, fault.Problem{Title: "too many requests", Detail: "this node asks too much at once", Status: http.StatusTooManyRequests})
		return
	}
	defer leave()
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != e.kind || r.Header.Get("Content-Encoding") != "" {
		httpx.Problem(w, fault.Problem{Title: "unsupported media type", Detail: "the body has to be " + e.kind + " without a content encoding", Status: http.StatusUnsupportedMediaType})
		return
	}
	body, give, err := e.read(w, r)
	defer give()
	if err != nil {
		e.fail(w, node, err)
		return
	}
	reply, err := e.take(r, node, body)
	if err != nil {
		e.fail(w, node, err)
		return
	}
	status := http.StatusOK
	if reply.Verdict != batch.Taken && reply.Verdict != batch.Known {
		status = http.StatusConflict
		e.in.warn(node, "batch not taken", "verdict", reply.Verdict.String())
	}
	httpx.JSON(w, status, reply)
}

// enter counts a request of a node in, or says how long it should stay away.
func (in *Receiver) enter(node string, now time.Time) (leave func(), wait time.Duration) {
	in.mu.Lock()
	defer in.mu.Unlock()
	o := in.origin(node)
	wait = time.Second
	if o.open < in.cfg.Parallel {
		wait = o.bucket.take(now, in.cfg.Rate, in.cfg.Burst)
	}
	if wait > 0 {
		in.stats.Limited++
		return nil, wait
	}
	o.open++
	return func() {
		in.mu.Lock()
		defer in.mu.Unlock()
		o.open--
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
	room := e.limit
	if r.ContentLength >= 0 {
		room = r.ContentLength
	}
	if room > e.limit {
		return nil, func() {}, errTooLarge
	}
	n := e.in.sized(room)
	give = func() { n.bodies.Add(-room) }
	if n.bodies.Add(room) > n.room || n.full() {
		return nil, give, busy("too many requests at once")
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(room) + bytes.MinRead)
	}
	src := &patient{r.Body, http.NewResponseController(w), e.in.cfg.Idle, time.Now().Add(e.in.cfg.Request)}
	_, err = b.ReadFrom(io.LimitReader(src, e.limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, give, errTooSlow
	case err != nil:
		return nil, give, fmt.Errorf("body: %w: %w", fault.ErrUnavailable, err)
	case int64(b.Len()) > e.limit:
		return nil, give, errTooLarge
	}
	return b.Bytes(), give, nil
}

// patient waits for each piece of a body for a while, and not for ever for all.
type patient struct {
	io.Reader
	*http.ResponseController
	idle time.Duration
	end  time.Time
}

func (p *patient) Read(b []byte) (int, error) {
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
		p = fault.Problem{Title: "content too large", Detail: fmt.Sprintf("a body may have %d bytes", e.limit), Status: http.StatusRequestEntityTooLarge}
		w.Header().Set("Connection", "close")
	case errors.Is(err, errTooSlow):
		p = fault.Problem{Title: "request timeout", Detail: err.Error(), Status: http.StatusRequestTimeout}
		w.Header().Set("Connection", "close")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		p = fault.ProblemOf(busy("the request was given up"))
		retry(w, time.Second)
	default:
		p = fault.ProblemOf(err)
	}
	if p.Status == http.StatusServiceUnavailable {
		wait := 5 * time.Second
		if b, ok := errors.AsType[*Busy](err); ok {
			wait = b.After
		} else if errors.Is(err, wire.ErrNewer) {
			wait = time.Minute // for somebody to upgrade this server
		}
		retry(w, wait)
	}
	e.in.warn(node, "request refused", "status", p.Status)
	httpx.Problem(w, p)
}

// warn logs what a node is told, once a minute: an agent that is refused tries
// again.
func (in *Receiver) warn(node, message string, args ...any) {
	now := time.Now()
	in.mu.Lock()
	o := in.origin(node)
	quiet := now.Sub(o.warned) < time.Minute
	if !quiet {
		o.warned = now
	}
	in.mu.Unlock()
	if !quiet {
		in.log.Warn(message, append([]any{"node", node}, args...)...)
	}
}

// stranger is the answer to one who is not known.
func stranger(err error) fault.Problem {
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		return fault.ProblemOf(err)
	}
	return fault.Problem{Title: "not identified", Detail: err.Error(), Status: http.StatusUnauthorized, Hint: fault.Hint(err)}
}

// retry tells to come back after d.
func retry(w http.ResponseWriter, d time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(d.Seconds())))))
}
