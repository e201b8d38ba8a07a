package httpx

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// CheckMethod returns ErrMethod, with the methods in its text, if a request has none of them.
// It then lists them in the answer's Allow header too.
func CheckMethod(w http.ResponseWriter, r *http.Request, methods ...string) error {
	if slices.Contains(methods, r.Method) {
		return nil
	}
	w.Header().Set("Allow", strings.Join(methods, ", "))
	return WithStatus(errors.New("there is only "+strings.Join(methods, " and ")), ErrMethod)
}

// CheckMediaType returns ErrMediaType if a request's body has another media type, or a content
// encoding.
func CheckMediaType(r *http.Request, mediaType string) error {
	if MediaType(r.Header) == mediaType && r.Header.Get("Content-Encoding") == "" {
		return nil
	}
	return WithStatus(errors.New("the body has to be "+mediaType+" without a content encoding"), ErrMediaType)
}

// MediaType returns the media type that a Content-Type header gives, in lower case and without
// parameters, or "" if it gives none.
func MediaType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// SetReadTimeout limits the time in which a client has to send the next bytes of its request.
// It also limits how long the server waits, after an answer, for the rest of a body that no
// handler read.
func SetReadTimeout(w http.ResponseWriter, d time.Duration) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d)) // writers of tests have no deadlines
}

// ReadBody reads the body of a request, of at most limit bytes. It waits at most idle for the
// next bytes of it, and at most whole for all of it. The error is ErrTooLarge, ErrTooSlow, or
// fault.ErrUnavailable if the connection broke. A body whose declared length is too large is
// not read. After a body was read, the connection has no read deadline.
func ReadBody(w http.ResponseWriter, r *http.Request, limit int64, idle, whole time.Duration) ([]byte, error) {
	tooLarge := func() error { return WithStatus(fmt.Errorf("the body has more than %d bytes", limit), ErrTooLarge) }
	if r.ContentLength > limit {
		return nil, tooLarge()
	}
	var b bytes.Buffer
	if r.ContentLength > 0 {
		b.Grow(int(r.ContentLength) + bytes.MinRead)
	}
	src := &deadlineReader{r.Body, http.NewResponseController(w), idle, time.Now().Add(whole)}
	_, err := b.ReadFrom(io.LimitReader(src, limit+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, WithStatus(errors.New("the body came too slowly"), ErrTooSlow)
	case err != nil:
		return nil, fmt.Errorf("body: %w: %w", err, fault.ErrUnavailable)
	case int64(b.Len()) > limit:
		return nil, tooLarge()
	}
	// The deadline is for the body, not for what the handler does with it.
	_ = src.SetReadDeadline(time.Time{})
	return b.Bytes(), nil
}

// deadlineReader reads a body with a deadline for each read and one for all.
type deadlineReader struct {
	io.Reader
	*http.ResponseController
	idle time.Duration
	end  time.Time
}

func (d *deadlineReader) Read(b []byte) (int, error) {
	next := time.Now().Add(d.idle)
	if next.After(d.end) {
		next = d.end
	}
	_ = d.SetReadDeadline(next) // writers of tests have no deadlines
	return d.Reader.Read(b)
}
