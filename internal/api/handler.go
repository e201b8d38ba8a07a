package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/fairqueue"
	"mete.dev/mete/internal/x/httpx"
)

// A call is a request that is admitted: its caller, and its parameters as texts.
type call struct {
	Caller
	given map[string][]string
}

// callKey is the key of the call in the context of a request.
type callKey struct{}

// callOf returns the call that [handler.admit] put into the context.
func callOf(c huma.Context) *call {
	found, ok := c.Context().Value(callKey{}).(*call)
	if !ok {
		panic("api: an operation without the middleware of all operations")
	}
	return found
}

// parameters are the parsed parameters of a request.
type parameters interface {
	caller() *Caller
	check() error // the first mistake in them
}

// A response is an answer to be written: as JSON, or if it is a [v1.Table] also as CSV.
type response struct {
	body v1.Document
	next string // the cursor of the next page
}

// A jsonFunc is a document that is encoded already, or by a function.
type jsonFunc func() []byte

// WriteJSON implements [v1.Document].
func (f jsonFunc) WriteJSON(w io.Writer) error {
	_, err := w.Write(f())
	return err
}

// The media types of answers.
const (
	typeJSON = "application/json"
	typeCSV  = "text/csv; charset=utf-8"
)

// admit is the middleware of all operations: it asks who calls, refuses parameters that
// the operation does not have, and puts the call into the context.
func (h *handler) admit(forSelf bool) func(huma.Context, func(huma.Context)) {
	return func(c huma.Context, next func(huma.Context)) {
		var allowed []string
		for _, p := range c.Operation().Parameters {
			if p.In == "query" {
				allowed = append(allowed, p.Name)
			}
		}
		r, w := humago.Unwrap(c)
		if found := h.readCall(w, r, allowed, forSelf); found != nil {
			found.now = h.now().UTC()
			next(huma.WithValue(c, callKey{}, found))
		}
	}
}

// answer writes the result of ask in the form that the parameters select, or its error.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, name string, p parameters, ask func(context.Context) (*response, error)) {
	if err := p.check(); err != nil {
		fail(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	var f *response
	err := h.queued(ctx, p.caller(), func() (err error) {
		f, err = ask(ctx)
		return err
	})
	switch {
	case r.Context().Err() != nil:
		return // the caller has gone
	case err != nil:
		h.failLogged(w, r, explainTimeout(err))
		return
	}
	head := w.Header()
	if f.next != "" {
		head.Set("Link", "<"+nextPageURL(r.URL, f.next)+`>; rel="next"`)
	}
	table, isTable := f.body.(v1.Table)
	if form, ok := p.(interface{ wantsCSV() bool }); ok && isTable {
		head.Add("Vary", "Accept")
		if form.wantsCSV() {
			head.Set("Content-Type", typeCSV)
			head.Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
			sendTagged(w, r, table.WriteCSV)
			return
		}
	}
	head.Set("Content-Type", typeJSON)
	sendTagged(w, r, f.body.WriteJSON)
}

// queued calls ask when it is the caller's turn: callers with the same scope share their
// turns, as do the jobs of a node and the pods of a namespace.
func (h *handler) queued(ctx context.Context, c *Caller, ask func() error) error {
	who := fmt.Sprintf("%+v %s", c.scope, c.self.group())
	switch err := h.queue.Acquire(ctx, who); {
	case errors.Is(err, fairqueue.ErrQueueFull):
		return fault.WithHint(fmt.Errorf("%w: %d requests of callers with the same scope: %w", err, maxQueue, fault.ErrUnavailable), "retry later, or send fewer requests at once")
	case err != nil:
		return err
	}
	defer h.queue.Release(who)
	return ask()
}

// explainTimeout replaces the error of a request that took too long by one with a hint.
func explainTimeout(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.WithHint(fmt.Errorf("no answer within %s: %w", queryTimeout, fault.ErrUnavailable), "query a shorter range or fewer groups")
	}
	return err
}

// readCall authorizes a request and reads its parameters as texts. Where it is refused,
// it is answered, and the call is nil.
func (h *handler) readCall(w http.ResponseWriter, r *http.Request, allowed []string, forSelf bool) *call {
	c := &call{}
	var err error
	if forSelf {
		c.self, err = h.identifySelf(r)
	} else {
		c.scope, err = h.authorize(r)
	}
	if err != nil {
		h.failDenied(w, r, err)
		return nil
	}
	if c.given, err = parseParameters(r); err == nil {
		err = v1.CheckParameters(c.given, allowed...)
	}
	if err != nil {
		fail(w, err)
		return nil
	}
	return c
}

// parseParameters returns the parameters of a request. URL.Query drops those that it cannot parse, which would change the request.
func parseParameters(r *http.Request) (url.Values, error) {
	given, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("parameters: %w: %w", err, fault.ErrInvalid), "write them as name=value, with & between them and special characters as %XX")
	}
	return given, nil
}

// nextPageURL returns the URL of the next page.
func nextPageURL(u *url.URL, cursor string) string {
	q := u.Query()
	q.Set(v1.ParamCursor, cursor)
	return (&url.URL{Path: u.Path, RawQuery: q.Encode()}).String()
}

// wantsCSV reports whether an Accept header prefers CSV to JSON.
func wantsCSV(accept string) bool {
	var csv, other float64
	for s := range strings.SplitSeq(accept, ",") {
		kind, rest, _ := strings.Cut(s, ";")
		q := 1.0
		for p := range strings.SplitSeq(rest, ";") {
			if v, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
				var err error
				if q, err = strconv.ParseFloat(v, 64); err != nil {
					q = 0
				}
			}
		}
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "text/csv":
			csv = max(csv, q)
		case typeJSON:
			other = max(other, q)
		}
	}
	return csv > other
}

// maxHeld is the size up to which an answer is held in memory to be sent.
const maxHeld = 1 << 20

// A digester makes the tag of an answer, and holds it if it is small.
type digester struct {
	sum  hash.Hash
	size int64
	held bytes.Buffer // the answer, if it has at most maxHeld bytes
}

func (d *digester) Write(b []byte) (int, error) {
	d.sum.Write(b)
	if d.size += int64(len(b)); d.size <= maxHeld {
		d.held.Write(b)
	} else {
		d.held = bytes.Buffer{}
	}
	return len(b), nil
}

// sendTagged answers with what write writes and its ETag, or 304 where the caller has it. It calls
// write again for a large answer, which it does not hold.
func sendTagged(w http.ResponseWriter, r *http.Request, write func(io.Writer) error) {
	d := &digester{sum: sha256.New()}
	if err := write(d); err != nil {
		panic("api: " + err.Error()) // a digester takes everything
	}
	tag := `"` + hex.EncodeToString(d.sum.Sum(nil)[:12]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	// The caller may keep it, and has to ask each time whether it is still valid.
	h.Set("Cache-Control", "private, no-cache")
	h.Add("Vary", "Authorization")
	if hasTag(r.Header.Values("If-None-Match"), tag) {
		h.Del("Content-Type")
		h.Del("Content-Disposition")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.FormatInt(d.size, 10))
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	// The caller may have gone.
	if d.size <= maxHeld {
		_, _ = w.Write(d.held.Bytes())
		return
	}
	_ = write(w)
}

// encoded writes an answer that is encoded already.
func encoded(body []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(body)
		return err
	}
}

// hasTag reports whether an If-None-Match header names a tag.
func hasTag(headers []string, tag string) bool {
	for _, h := range headers {
		for s := range strings.SplitSeq(h, ",") {
			if s = strings.TrimSpace(s); s == "*" || strings.TrimPrefix(s, "W/") == tag {
				return true
			}
		}
	}
	return false
}

// fail answers with an error. A client may send a request again after one second if the answer is
// that the server is unavailable.
func fail(w http.ResponseWriter, err error) {
	if httpx.ProblemOf(err).Status == http.StatusServiceUnavailable {
		err = &fault.RetryError{Err: err, After: time.Second}
	}
	httpx.Fail(w, err)
}

// failDenied refuses a caller who is not authorized.
func (h *handler) failDenied(w http.ResponseWriter, r *http.Request, err error) {
	_, stranger := errors.AsType[*UnauthenticatedError](err)
	_, limited := fault.RetryAfter(err)
	switch {
	case limited:
		err = httpx.WithStatus(err, httpx.ErrTooMany)
	case stranger, errors.Is(err, fault.ErrDenied) && r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0):
		err = httpx.WithStatus(err, errUnauthenticated)
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if httpx.ProblemOf(err).Status >= http.StatusInternalServerError {
		h.log.Error("request not authorized", "path", r.URL.Path, "err", err)
	}
	fail(w, err)
}

// failLogged answers with an error, and logs one of the server itself.
func (h *handler) failLogged(w http.ResponseWriter, r *http.Request, err error) {
	if httpx.ProblemOf(err).Status >= http.StatusInternalServerError && !errors.Is(err, fairqueue.ErrQueueFull) { // which would fill the log
		h.log.Error("request not answered", "path", r.URL.Path, "err", err)
	}
	fail(w, err)
}

// allowMethods refuses all methods but those given, and reports whether to continue.
func allowMethods(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	err := httpx.CheckMethod(w, r, methods...)
	if err != nil {
		fail(w, err)
	}
	return err == nil
}

func writeJSON(w http.ResponseWriter, status int, d v1.Document) {
	httpx.Write(w, status, typeJSON, v1.JSON(d))
}
