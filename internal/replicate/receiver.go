package replicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/x/httpx"
)

// A Store keeps states.
type Store interface {
	// StatesMark is how far a source's have been taken.
	StatesMark(ctx context.Context, src replica.Source) (replica.Mark, error)
	// TakeStates takes a page as a whole and returns the mark after it. Where
	// the page does not go on at the mark it is fault.ErrConflict, with the mark.
	TakeStates(ctx context.Context, src replica.Source, p *replica.Page, now time.Time) (replica.Mark, error)
}

// A Receiver takes states from servers below.
type Receiver struct {
	store    Store
	limits   wire.Limits
	identify func(*http.Request) (replica.Source, error)
	log      *slog.Logger

	decoders chan struct{}
	mu       sync.Mutex
	open     map[string]bool // sources that are being served
	warned   map[string]time.Time
}

const (
	maxDecoders = 2                // pages that are in memory at once: one takes some 20 MB
	idleTimeout = 10 * time.Second // how long a sender may send nothing of a page
	bodyTimeout = time.Minute      // how long it may send one at all
)

// NewReceiver returns a Receiver. identify says which server a request is from; its
// error is answered with 403 where it wraps fault.ErrDenied, with 503 where it
// wraps fault.ErrUnavailable, else with 401.
func NewReceiver(k Store, identify func(*http.Request) (replica.Source, error), log *slog.Logger) *Receiver {
	return &Receiver{
		store: k, limits: wire.Default(), identify: identify, log: log,
		decoders: make(chan struct{}, maxDecoders), open: map[string]bool{}, warned: map[string]time.Time{},
	}
}

// Handler serves POST /v1/states and GET /v1/states/mark. Both answer with a
// mark; a page that does not go on there is answered with 409 and the mark.
// Errors are problems (RFC 9457). Each answer states what the server reads, in
// wire.HeaderReads.
func (rc *Receiver) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/states", rc.serve(rc.post))
	mux.HandleFunc("GET /v1/states/mark", rc.serve(func(_ http.ResponseWriter, r *http.Request, src replica.Source) (replica.Mark, error) {
		return rc.store.StatesMark(r.Context(), src)
	}))
	for path, method := range map[string]string{"/v1/states": http.MethodPost, "/v1/states/mark": http.MethodGet} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", method)
			httpx.WriteProblem(w, fault.Problem{Title: "method not allowed", Status: http.StatusMethodNotAllowed})
		})
	}
	return httpx.WithHeader(wire.HeaderReads, wire.LatestFormat().String(), mux)
}

// Errors of a request that no kind says.
var (
	errMedia   = errors.New("the body has to be " + wire.MediaTypeStates + " without a content encoding")
	errBody    = errors.New("the body is too large")
	errTooSlow = errors.New("the body came too slowly")
)

func (rc *Receiver) serve(take func(http.ResponseWriter, *http.Request, replica.Source) (replica.Mark, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		// It also bounds how long the server waits for a body that nobody reads.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(idleTimeout)) // a writer without one is a test's
		src, err := rc.identify(r)
		if err != nil {
			httpx.WriteProblem(w, identityProblem(err))
			return
		}
		leave := rc.admit(src.ID)
		if leave == nil {
			httpx.SetRetryAfter(w, time.Second)
			httpx.WriteProblem(w, fault.Problem{Title: "too many requests", Detail: "one page at a time", Status: http.StatusTooManyRequests})
			return
		}
		defer leave()
		m, err := take(w, r, src)
		switch {
		case err == nil:
			httpx.WriteJSON(w, http.StatusOK, m)
		case errors.Is(err, fault.ErrConflict):
			httpx.WriteJSON(w, http.StatusConflict, m)
		default:
			rc.fail(w, src, err)
		}
	}
}

// admit lets one request of a source in at a time; nil is not now.
func (rc *Receiver) admit(source string) (leave func()) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.open[source] {
		return nil
	}
	rc.open[source] = true
	return func() {
		rc.mu.Lock()
		defer rc.mu.Unlock()
		delete(rc.open, source)
	}
}

func (rc *Receiver) post(w http.ResponseWriter, r *http.Request, src replica.Source) (m replica.Mark, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != wire.MediaTypeStates || r.Header.Get("Content-Encoding") != "" {
		return m, errMedia
	}
	select {
	case rc.decoders <- struct{}{}:
		defer func() { <-rc.decoders }()
	case <-r.Context().Done():
		return m, r.Context().Err()
	}
	body, err := rc.read(w, r)
	if err != nil {
		return m, err
	}
	p, err := wire.DecodeStates(body, rc.limits)
	if err != nil {
		return m, err
	}
	return rc.store.TakeStates(r.Context(), src, p, time.Now())
}

// read reads a body, as far as it may be large.
func (rc *Receiver) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := int64(rc.limits.Sent)
	if r.ContentLength > limit {
		return nil, errBody
	}
	p := deadlineReader{r.Body, http.NewResponseController(w), time.Now().Add(bodyTimeout)}
	b, err := io.ReadAll(io.LimitReader(p, limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, errTooSlow
	case err != nil:
		return nil, fmt.Errorf("body: %w: %w", fault.ErrUnavailable, err)
	case int64(len(b)) > limit:
		return nil, errBody
	}
	// The deadline was for the body, not for what is made of it.
	_ = p.SetReadDeadline(time.Time{})
	return b, nil
}

// deadlineReader waits for each piece of a body for a while, and not for ever for all.
type deadlineReader struct {
	io.Reader
	*http.ResponseController
	end time.Time
}

func (p deadlineReader) Read(b []byte) (int, error) {
	until := time.Now().Add(idleTimeout)
	if until.After(p.end) {
		until = p.end
	}
	_ = p.SetReadDeadline(until)
	return p.Reader.Read(b)
}

func (rc *Receiver) fail(w http.ResponseWriter, src replica.Source, err error) {
	var p fault.Problem
	switch {
	case errors.Is(err, errMedia):
		p = fault.Problem{Title: "unsupported media type", Detail: err.Error(), Status: http.StatusUnsupportedMediaType}
	case errors.Is(err, errBody):
		p = fault.Problem{Title: "content too large", Detail: err.Error(), Status: http.StatusRequestEntityTooLarge}
		w.Header().Set("Connection", "close")
	case errors.Is(err, errTooSlow):
		p = fault.Problem{Title: "request timeout", Detail: err.Error(), Status: http.StatusRequestTimeout}
		w.Header().Set("Connection", "close")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		p = fault.ProblemOf(fmt.Errorf("the request was given up: %w", fault.ErrUnavailable))
	default:
		if p = fault.ProblemOf(err); p.Status == http.StatusInternalServerError {
			// Nothing was taken, and it may work later.
			p = fault.Problem{Title: fault.ErrUnavailable.Error(), Status: http.StatusServiceUnavailable}
		}
	}
	if p.Status == http.StatusServiceUnavailable {
		httpx.SetRetryAfter(w, 5*time.Second)
	}
	rc.warn(src, p.Status, err)
	httpx.WriteProblem(w, p)
}

// warn logs what a source is told, once a minute.
func (rc *Receiver) warn(src replica.Source, status int, err error) {
	now := time.Now()
	rc.mu.Lock()
	quiet := now.Sub(rc.warned[src.ID]) < time.Minute
	if !quiet {
		rc.warned[src.ID] = now
	}
	rc.mu.Unlock()
	if !quiet {
		rc.log.Warn("page refused", "source", src.ID, "status", status, "err", err)
	}
}

// identityProblem is the answer to one who is not known.
func identityProblem(err error) fault.Problem {
	if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnavailable) {
		return fault.ProblemOf(err)
	}
	return fault.Problem{Title: "not identified", Detail: "a server's certificate is needed", Status: http.StatusUnauthorized, Hint: fault.Hint(err)}
}
