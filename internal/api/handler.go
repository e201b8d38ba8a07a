package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/x/fairqueue"
	"mete.dev/mete/internal/x/httpx"
)

// A request is a question: its parameters, and what who asks may see.
type request struct {
	params map[string][]string
	scope  query.Scope
	job    token.Job      // that asks for its own use, where the question is for jobs alone
	page   v1.PageRequest // of a list; all of it where the question has no pages
}

// A response is an answer in the forms in which it can be had.
type response struct {
	json, csv func() []byte
	next      string // cursor of the next page
}

// A queryFunc finds the answer to a request.
type queryFunc func(ctx context.Context, a request) (*response, error)

// The media types of answers.
const (
	typeJSON = "application/json"
	typeCSV  = "text/csv; charset=utf-8"
)

// queryHandler makes a handler of a question that takes some parameters. forJobs says that it
// is for jobs about themselves.
func (h *handler) queryHandler(name string, allowed []string, forJobs bool, ask queryFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a, form, err := h.readRequest(w, r, allowed, forJobs)
		if err != nil {
			return // it is told
		}
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		var f *response
		err = h.queued(ctx, a, func() (err error) {
			f, err = ask(ctx, a)
			return err
		})
		switch {
		case r.Context().Err() != nil:
			return // who asked has gone
		case err != nil:
			h.writeFailure(w, r, explainTimeout(err))
			return
		}
		head := w.Header()
		if f.next != "" {
			head.Set("Link", "<"+nextPageURL(r.URL, f.next)+`>; rel="next"`)
		}
		if f.csv != nil {
			head.Add("Vary", "Accept")
			if form == v1.FormatCSV || form == "" && wantsCSV(r.Header.Get("Accept")) {
				head.Set("Content-Type", typeCSV)
				head.Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
				sendTagged(w, r, f.csv())
				return
			}
		}
		head.Set("Content-Type", typeJSON)
		sendTagged(w, r, f.json())
	}
}

// queued asks when it is the turn of who asks: those who see the same share theirs,
// as do a node's jobs.
func (h *handler) queued(ctx context.Context, a request, ask func() error) error {
	who := fmt.Sprintf("%+v %s", a.scope, a.job.Node)
	switch err := h.queue.Acquire(ctx, who); {
	case errors.Is(err, fairqueue.ErrQueueFull):
		return fault.WithHint(fmt.Errorf("%w: %d questions of those who see the same: %w", err, maxQueue, fault.ErrUnavailable), "ask again later, or fewer at once")
	case err != nil:
		return err
	}
	defer h.queue.Release(who)
	return ask()
}

// explainTimeout is an error, in words for people where the time was over.
func explainTimeout(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.WithHint(fmt.Errorf("no answer within %s: %w", queryTimeout, fault.ErrUnavailable), "ask about less time or fewer groups")
	}
	return err
}

// readRequest reads a request, and answers it where it may not be asked or makes no
// sense.
func (h *handler) readRequest(w http.ResponseWriter, r *http.Request, allowed []string, forJobs bool) (a request, form string, err error) {
	if forJobs {
		a.job, err = h.identifyJob(r)
	} else {
		a.scope, err = h.authorize(r)
	}
	if err != nil {
		h.writeDenied(w, r, err)
		return a, "", err
	}
	// The standard library's Query leaves out what it cannot read, and so
	// would answer another question.
	if a.params, err = parseParameters(r.URL.RawQuery); err == nil {
		err = v1.CheckParameters(a.params, allowed...)
	}
	if err == nil && slices.Contains(allowed, v1.ParamFormat) {
		form, err = v1.ParseFormat(a.params)
	}
	if err == nil && slices.Contains(allowed, v1.ParamCursor) {
		a.page, err = v1.ParsePageRequest(a.params)
	}
	if err != nil {
		writeError(w, err)
	}
	return a, form, err
}

// nextPageURL is the address of the next page.
func nextPageURL(u *url.URL, cursor string) string {
	q := u.Query()
	q.Set(v1.ParamCursor, cursor)
	return (&url.URL{Path: u.Path, RawQuery: q.Encode()}).String()
}

// wantsCSV says whether an Accept header asks for CSV rather than for JSON.
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

// sendTagged answers with a body, or that it is still what who asks has.
func sendTagged(w http.ResponseWriter, r *http.Request, body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + hex.EncodeToString(sum[:12]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	// It may be kept by who asked, and has to be asked for anew each time.
	h.Set("Cache-Control", "private, no-cache")
	h.Add("Vary", "Authorization")
	if hasTag(r.Header.Values("If-None-Match"), tag) {
		h.Del("Content-Type")
		h.Del("Content-Disposition")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // who has gone away needs no answer
}

// hasTag says whether an If-None-Match header names a tag.
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

// writeDenied answers who may not ask.
func (h *handler) writeDenied(w http.ResponseWriter, r *http.Request, err error) {
	p := fault.ProblemOf(err)
	_, stranger := errors.AsType[*UnauthenticatedError](err)
	wait, limited := fault.RetryAfter(err)
	switch {
	case limited:
		p.Status, p.Title = http.StatusTooManyRequests, "too many requests"
		httpx.SetRetryAfter(w, wait)
	case stranger, errors.Is(err, fault.ErrDenied) && r.Header.Get("Authorization") == "" && (r.TLS == nil || len(r.TLS.PeerCertificates) == 0):
		p.Status, p.Title = http.StatusUnauthorized, "who are you?"
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if p.Status >= http.StatusInternalServerError {
		h.log.Error("request not authorized", "path", r.URL.Path, "err", err)
	}
	writeProblem(w, p)
}

// writeFailure answers with an error, and logs one that is the server's own.
func (h *handler) writeFailure(w http.ResponseWriter, r *http.Request, err error) {
	p := fault.ProblemOf(err)
	if p.Status >= http.StatusInternalServerError && !errors.Is(err, fairqueue.ErrQueueFull) { // of which there would be as many
		h.log.Error("question not answered", "path", r.URL.Path, "err", err)
	}
	writeProblem(w, p)
}

// allowMethods refuses all methods but those given, and reports whether to go on.
func allowMethods(w http.ResponseWriter, r *http.Request, methods ...string) bool {
	if slices.Contains(methods, r.Method) {
		return true
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	writeProblem(w, fault.Problem{Title: "method not allowed", Detail: "there is only " + strings.Join(methods, " and "), Status: http.StatusMethodNotAllowed})
	return false
}

func writeError(w http.ResponseWriter, err error) { writeProblem(w, fault.ProblemOf(err)) }

func writeProblem(w http.ResponseWriter, p fault.Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		panic("api: " + err.Error()) // it is plain text and a number
	}
	w.Header().Set("Content-Type", fault.ProblemType)
	if p.Status == http.StatusServiceUnavailable {
		httpx.SetRetryAfter(w, time.Second)
	}
	writeBody(w, p.Status, append(body, '\n'))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", typeJSON)
	writeBody(w, status, body)
}

func writeBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // who has gone away needs no answer
}
