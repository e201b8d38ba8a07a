package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/x/httpx"
)

// A Store keeps states.
type Store interface {
	// StatesMark returns the mark up to which states of a source are stored.
	StatesMark(ctx context.Context, src replica.Source) (replica.Mark, error)
	// TakeStates stores a page as a whole and returns the mark after it. If the page does not
	// begin at the mark, the error is fault.ErrConflict, with the mark.
	TakeStates(ctx context.Context, src replica.Source, p *replica.Page, now time.Time) (replica.Mark, error)
}

// A Receiver takes states from servers below.
type Receiver struct {
	store      Store
	limits     wire.Limits
	identify   func(*http.Request) (replica.Source, error)
	log        *slog.Logger
	logLimiter httpx.LogLimiter // by source

	bodies   chan struct{} // holds an element for each page that is in memory
	decoders chan struct{} // likewise, for each that is decoded or stored
	mu       sync.Mutex
	open     map[string]bool // sources with a request that is being served
}

const (
	maxBodies   = 16               // pages that are read at once, 4 MiB each
	maxDecoders = 2                // pages that are decoded at once: one takes about 20 MB
	idleTimeout = 10 * time.Second // without a byte of a page
	bodyTimeout = time.Minute      // for all bytes of a page
	retryDelay  = 5 * time.Second  // of a page that may be stored later
)

var (
	errNoCertificate = errors.New("a server's certificate is needed")
	errSecondPage    = &fault.RetryError{Err: httpx.WithStatus(errors.New("one page at a time"), httpx.ErrTooMany), After: time.Second}
	// errNotStored is the answer for an error of the store, whose text stays here: it is about
	// this server. Nothing was stored, and it may be later.
	errNotStored = httpx.Status{Code: http.StatusServiceUnavailable, Title: fault.ErrUnavailable.Error()}
)

// NewReceiver returns a Receiver. identify returns the server that sends a request; its error is
// answered with 403 if it wraps fault.ErrDenied, with 503 if it wraps fault.ErrUnavailable, else
// with 401.
func NewReceiver(s Store, identify func(*http.Request) (replica.Source, error), log *slog.Logger) *Receiver {
	return &Receiver{store: s, limits: wire.Default(), identify: identify, log: log, bodies: make(chan struct{}, maxBodies), decoders: make(chan struct{}, maxDecoders), open: map[string]bool{}}
}

// Handler serves POST /v1/states and GET /v1/states/mark. Both answer with a mark; a page that
// does not begin there is answered with 409 and the mark. Errors are problems (RFC 9457). Each
// answer states what the server reads, in wire.HeaderReads.
func (rc *Receiver) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/states", rc.serve(rc.post))
	mux.HandleFunc("GET /v1/states/mark", rc.serve(func(_ http.ResponseWriter, r *http.Request, src replica.Source) (replica.Mark, error) {
		return rc.store.StatesMark(r.Context(), src)
	}))
	for path, method := range map[string]string{"/v1/states": http.MethodPost, "/v1/states/mark": http.MethodGet} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			httpx.Fail(w, httpx.CheckMethod(w, r, method)) // the mux has other patterns for this method
		})
	}
	return httpx.WithHeader(wire.HeaderReads, wire.LatestFormat().String(), mux)
}

func (rc *Receiver) serve(handle func(http.ResponseWriter, *http.Request, replica.Source) (replica.Mark, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		httpx.SetReadTimeout(w, idleTimeout)
		src, err := rc.identify(r)
		if err != nil {
			if err = httpx.Unidentified(err); errors.Is(err, httpx.ErrUnauthorized) {
				err = httpx.WithStatus(fault.WithHint(errNoCertificate, fault.Hint(err)), httpx.ErrUnauthorized)
			}
			httpx.Fail(w, err)
			return
		}
		release := rc.admit(src.ID)
		if release == nil {
			httpx.Fail(w, errSecondPage)
			return
		}
		defer release()
		m, err := handle(w, r, src)
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

// admit counts a request of a source as being served until release is called. It returns nil
// if another request of the source is being served.
func (rc *Receiver) admit(source string) (release func()) {
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
	if err := httpx.CheckMediaType(r, wire.MediaTypeStates); err != nil {
		return m, err
	}
	leave, err := enter(r.Context(), rc.bodies)
	if err != nil {
		return m, err
	}
	defer leave()
	body, err := httpx.ReadBody(w, r, int64(rc.limits.Sent), idleTimeout, bodyTimeout)
	if err != nil {
		return m, err
	}
	// A page that comes slowly keeps no other from being decoded.
	leave, err = enter(r.Context(), rc.decoders)
	if err != nil {
		return m, err
	}
	defer leave()
	p, err := wire.DecodeStates(body, rc.limits)
	if err != nil {
		return m, err
	}
	return rc.store.TakeStates(r.Context(), src, p, time.Now())
}

// enter waits for room in a channel, and takes it until leave is called.
func enter(ctx context.Context, room chan struct{}) (leave func(), err error) {
	select {
	case room <- struct{}{}:
		return func() { <-room }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// fail answers an error, and logs it once a minute for each source.
func (rc *Receiver) fail(w http.ResponseWriter, src replica.Source, err error) {
	answer := err
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		answer = fmt.Errorf("the request was canceled: %w", fault.ErrUnavailable)
	case httpx.ProblemOf(err).Status == http.StatusInternalServerError:
		answer = errNotStored
	}
	if rc.logLimiter.Allow(src.ID, time.Now()) {
		rc.log.Warn("page refused", "source", src.ID, "status", httpx.ProblemOf(answer).Status, "err", err)
	}
	httpx.Fail(w, httpx.RetryLater(answer, retryDelay))
}
