package httpx_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// TestFail checks the status code, the headers and the body of the answer to each error.
func TestFail(t *testing.T) {
	busy := fmt.Errorf("busy: %w", fault.ErrUnavailable)
	wait := func(err error) error { return &fault.RetryError{Err: err, After: 1500 * time.Millisecond} }
	type header = map[string]string
	for name, c := range map[string]struct {
		err    error
		status int
		header header
		body   string
	}{
		"invalid":        {fmt.Errorf("row 7: %w", fault.ErrInvalid), 400, nil, `{"title":"invalid","detail":"row 7: invalid","status":400}`},
		"with a hint":    {fault.WithHint(fmt.Errorf("node 1: %w", fault.ErrDenied), "enroll"), 403, nil, `{"title":"permission denied","detail":"node 1: permission denied","status":403,"hint":"enroll"}`},
		"of no kind":     {errors.New("the password is 1234"), 500, nil, `{"title":"internal error","status":500}`},
		"busy":           {busy, 503, nil, `{"title":"unavailable","detail":"busy: unavailable","status":503}`},
		"busy, and when": {fmt.Errorf("now: %w", wait(busy)), 503, header{"Retry-After": "2"}, `{"title":"unavailable","detail":"now: busy: unavailable","status":503}`},
		"busy by status": {httpx.Status{Code: 503, Title: "unavailable"}, 503, nil, `{"title":"unavailable","status":503}`},
		"denied, and when": {wait(fault.ErrDenied), 403, nil,
			`{"title":"permission denied","detail":"permission denied","status":403}`},
		"too large":      {httpx.WithStatus(errors.New("more than 7 bytes"), httpx.ErrTooLarge), 413, header{"Connection": "close"}, `{"title":"content too large","detail":"more than 7 bytes","status":413}`},
		"too slow":       {httpx.ErrTooSlow, 408, header{"Connection": "close"}, `{"title":"request timeout","status":408}`},
		"media type":     {httpx.ErrMediaType, 415, nil, `{"title":"unsupported media type","status":415}`},
		"method":         {httpx.ErrMethod, 405, nil, `{"title":"method not allowed","status":405}`},
		"too many":       {wait(httpx.WithStatus(errors.New("one page at a time"), httpx.ErrTooMany)), 429, header{"Retry-After": "2"}, `{"title":"too many requests","detail":"one page at a time","status":429}`},
		"unauthorized":   {httpx.WithStatus(fault.WithHint(errors.New("no certificate"), "enroll"), httpx.ErrUnauthorized), 401, nil, `{"title":"not identified","detail":"no certificate","status":401,"hint":"enroll"}`},
		"title of kind":  {httpx.WithStatus(fmt.Errorf("claim: %w", fault.ErrInvalid), httpx.Status{Code: 413}), 413, header{"Connection": "close"}, `{"title":"invalid","detail":"claim: invalid","status":413}`},
		"own title":      {httpx.WithStatus(fmt.Errorf("token: %w", fault.ErrDenied), httpx.Status{Code: 401, Title: "unknown client"}), 401, nil, `{"title":"unknown client","detail":"token: permission denied","status":401}`},
		"two statuses":   {httpx.WithStatus(httpx.WithStatus(errors.New("x"), httpx.ErrTooLarge), httpx.ErrTooMany), 429, nil, `{"title":"too many requests","detail":"x","status":429}`},
		"wrapped status": {fmt.Errorf("batch: %w", httpx.ErrTooLarge), 413, header{"Connection": "close"}, `{"title":"content too large","detail":"batch: content too large","status":413}`},
	} {
		w := httptest.NewRecorder()
		httpx.Fail(w, c.err)
		want := header{"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
		maps.Copy(want, c.header)
		got := header{}
		for k := range w.Header() {
			got[k] = w.Header().Get(k)
		}
		if w.Code != c.status || !maps.Equal(got, want) || w.Body.String() != c.body+"\n" {
			t.Errorf("%s: %d %v %s, want %d %v %s", name, w.Code, got, w.Body, c.status, want, c.body)
		}
		if p := httpx.ProblemOf(c.err); p.Status != c.status {
			t.Errorf("%s: status %d of the problem, want %d", name, p.Status, c.status)
		}
	}
}

// TestWithStatus checks that an error keeps its text, kind and hint, and can be compared.
func TestWithStatus(t *testing.T) {
	err := httpx.WithStatus(fault.WithHint(fmt.Errorf("page: %w", fault.ErrInvalid), "send less"), httpx.ErrTooLarge)
	if err.Error() != "page: invalid" || fault.Hint(err) != "send less" || !errors.Is(err, fault.ErrInvalid) || !errors.Is(err, httpx.ErrTooLarge) {
		t.Errorf("%v with the hint %q", err, fault.Hint(err))
	}
	if errors.Is(err, httpx.ErrTooMany) {
		t.Errorf("%v is ErrTooMany too", err)
	}
}

func TestUnidentified(t *testing.T) {
	for err, status := range map[error]int{
		errors.New("no certificate"):                        401,
		fmt.Errorf("revoked: %w", fault.ErrDenied):          403,
		fmt.Errorf("no database: %w", fault.ErrUnavailable): 503,
	} {
		if p := httpx.ProblemOf(httpx.Unidentified(err)); p.Status != status || p.Detail != err.Error() {
			t.Errorf("%v: %+v, want status %d", err, p, status)
		}
	}
}

// TestRetryLater checks that only an answer that the request may succeed later gets a time, and
// only if the error does not give one.
func TestRetryLater(t *testing.T) {
	own := &fault.RetryError{Err: fault.ErrUnavailable, After: time.Hour}
	for err, want := range map[error]time.Duration{
		fault.ErrUnavailable: time.Minute, own: time.Hour, fault.ErrInvalid: 0, errors.New("x"): 0, httpx.ErrTooMany: 0,
		httpx.Status{Code: 503, Title: "unavailable"}: time.Minute,
	} {
		if got, _ := fault.RetryAfter(httpx.RetryLater(err, time.Minute)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func TestLogLimiter(t *testing.T) {
	var l httpx.LogLimiter
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var got strings.Builder
	for _, c := range []struct {
		client string
		after  time.Duration
	}{{"a", 0}, {"a", time.Second}, {"b", time.Second}, {"a", 59 * time.Second}, {"a", time.Minute}, {"b", time.Minute}, {"b", 61 * time.Second}, {"a", 90 * time.Second}, {"a", 2 * time.Minute}} {
		fmt.Fprint(&got, l.Allow(c.client, at.Add(c.after)), " ")
	}
	if want := "true false true false true false true false true "; got.String() != want {
		t.Errorf("lines: %s, want %s", got.String(), want)
	}
}

func TestWriteJSON(t *testing.T) {
	w := httptest.NewRecorder()
	httpx.WithHeader("Mete-Reads", "1", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { httpx.WriteJSON(w, 409, []int{1}) })).ServeHTTP(w, nil)
	if h := w.Header(); w.Code != 409 || w.Body.String() != "[1]\n" || h.Get("Content-Type") != "application/json" || h.Get("Mete-Reads") != "1" {
		t.Errorf("%d %v %s", w.Code, h, w.Body)
	}
}

func TestWrite(t *testing.T) {
	w := httptest.NewRecorder()
	httpx.Write(w, 201, "text/plain", []byte("made"))
	if h := w.Header(); w.Code != 201 || w.Body.String() != "made" || h.Get("Content-Type") != "text/plain" || h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%d %v %s", w.Code, h, w.Body)
	}
}
