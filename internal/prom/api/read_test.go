package api

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/snappy"
	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// A Prometheus client reads samples, streamed and whole, in the turn of a large query.
func TestRemoteRead(t *testing.T) {
	a := openTestAPI(t, Default(), 100, nil, slog.New(slog.DiscardHandler))
	srv := httptest.NewServer(a)
	defer srv.Close()
	for _, kind := range []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES} {
		u, err := url.Parse(srv.URL + "/api/v1/read")
		if err != nil {
			t.Fatal(err)
		}
		c, err := remote.NewReadClient("test", &remote.ClientConfig{URL: &configutil.URL{URL: u}, Timeout: model.Duration(time.Minute), ChunkedReadLimit: 1 << 26,
			AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{kind}})
		if err != nil {
			t.Fatal(err)
		}
		set, err := c.Read(t.Context(), &prompb.Query{StartTimestampMs: 1e12, EndTimestampMs: 1e12 + 3600e3,
			Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_EQ, Name: "__name__", Value: "m"}}}, false)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for set.Next() {
			n++
		}
		if set.Err() != nil || n != 100 {
			t.Errorf("%v: %d series, %v", kind, n, set.Err())
		}
	}
	// A client that sends its request slowly holds no turn.
	body, slow := io.Pipe()
	time.AfterFunc(100*time.Millisecond, func() {
		if a.large.Running() != 0 {
			t.Error("an incomplete request holds a turn")
		}
		_ = slow.CloseWithError(io.ErrUnexpectedEOF)
	})
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/api/v1/read", body)); w.Code != http.StatusBadRequest {
		t.Errorf("half a request: %d %s", w.Code, w.Body)
	}
	if c := a.Counts(); c.Answered != 2 || c.Invalid != 1 {
		t.Errorf("%+v", c)
	}
}

// newReadRequest returns a remote read with the given number of queries for a metric's samples.
func newReadRequest(t *testing.T, queries int, kind prompb.ReadRequest_ResponseType, value string) *http.Request {
	t.Helper()
	r := prompb.ReadRequest{AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{kind}}
	for range queries {
		r.Queries = append(r.Queries, &prompb.Query{StartTimestampMs: 1e12, EndTimestampMs: 1e12 + 3600e3, Matchers: []*prompb.LabelMatcher{{Name: "__name__", Value: value}}})
	}
	b, err := r.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return httptest.NewRequest(http.MethodPost, "/api/v1/read", bytes.NewReader(snappy.Encode(nil, b)))
}

// The queries of a request share the limits of one query; streamed chunks do not count, and
// too many queries are refused before they are unmarshaled.
func TestReadLimits(t *testing.T) {
	a := openTestAPI(t, Default(), 100, nil, slog.New(slog.DiscardHandler)) // 1000 samples
	a.limits.readSamples = 4500
	held, streamed := prompb.ReadRequest_SAMPLES, prompb.ReadRequest_STREAMED_XOR_CHUNKS
	for _, c := range []struct {
		queries int
		kind    prompb.ReadRequest_ResponseType
		value   string
		code    int
		says    string
	}{
		{4, held, "m", 200, ""},
		{5, held, "m", 422, "more than 4500 samples"},
		{16, streamed, "m", 200, ""},
		{17, streamed, "m", 400, "more than 16 queries"},
		{17, held, "m", 400, "more than 16 queries"},
		{1, held, strings.Repeat("x", maxQueryBytes), 400, "at most 65536"},
		{30, held, strings.Repeat("x", maxQueryBytes-100), 400, "at most 1048576"},
	} {
		w := httptest.NewRecorder()
		a.ServeHTTP(w, newReadRequest(t, c.queries, c.kind, c.value))
		if w.Code != c.code || c.says != "" && !strings.Contains(w.Body.String(), c.says) {
			t.Errorf("%d queries, %v: %d %.300s; want %d %q", c.queries, c.kind, w.Code, w.Body, c.code, c.says)
		}
	}
	a.limits.large.series = 250
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, newReadRequest(t, 3, held, "m")); w.Code != http.StatusUnprocessableEntity || !strings.Contains(w.Body.String(), "more than 250 series") {
		t.Errorf("series of three queries: %d %s", w.Code, w.Body)
	}
	for what, body := range map[string]string{"not compressed": "hello, this is not snappy", "a bomb": "\xff\xff\xff\xff\x0f" + strings.Repeat("\x00", 100), "no message": string(snappy.Encode(nil, []byte("\xff\xff\xff")))} {
		w := httptest.NewRecorder()
		if a.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/api/v1/read", strings.NewReader(body))); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	if a.large.Running() != 0 || len(a.memory.running) != 0 {
		t.Errorf("%d turns are not released, %d reads still watched", a.large.Running(), len(a.memory.running))
	}
}

// A remote read stops when the memory watch cancels it or its time is over.
func TestReadCanceled(t *testing.T) {
	a := openTestAPI(t, Default(), 1, nil, slog.New(slog.DiscardHandler))
	short, end := context.WithCancelCause(t.Context())
	end(errMemory)
	late, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for _, c := range []struct {
		ctx  context.Context
		code int
		says string
	}{{short, http.StatusUnprocessableEntity, "too much memory"}, {late, http.StatusServiceUnavailable, "timed out"}, {t.Context(), http.StatusInternalServerError, ""}} {
		one := &admission{api: a, large: true, remoteRead: true}
		ctx := context.WithValue(c.ctx, admissionKey{}, one)
		held, streamed := countSeries(ctx, storage.EmptySeriesSet(), nil), endWithRequest(ctx, storage.EmptyChunkSeriesSet())
		if held.Next() || streamed.Next() {
			t.Errorf("%q: the set is not empty", c.says)
		}
		for _, err := range []error{held.Err(), streamed.Err()} {
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) || one.status() != c.code {
				t.Errorf("%v, %d; want %q, %d", err, one.status(), c.says, c.code)
			}
		}
	}
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	one := &admission{api: a, large: true, remoteRead: true}
	samples := countedReadSeries{storage.MockSeries(nil, make([]int64, 5000), make([]float64, 5000), []string{"a", "b"}), &countedSeriesSet{ctx: ctx, admission: one}}.Iterator(nil)
	n := 0
	for samples.Next() == chunkenc.ValFloat {
		if n++; n == 500 {
			end(errMemory)
		}
	}
	if n < 500 || n > 2000 || samples.Err() == nil || one.samples != n {
		t.Errorf("canceled read: %d samples of 5000 read, %d counted: %v", n, one.samples, samples.Err())
	}
}

// The memory watch can cancel a remote read.
func TestReadWatched(t *testing.T) {
	a := openTestAPI(t, Default(), 100, nil, slog.New(slog.DiscardHandler))
	inner, watched := a.handler, 0
	a.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.memory.mu.Lock()
		for _, one := range a.memory.running {
			watched++
			one.cancel(errMemory)
		}
		a.memory.mu.Unlock()
		inner.ServeHTTP(w, r)
	})
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, newReadRequest(t, 1, prompb.ReadRequest_SAMPLES, "m")); watched != 1 || w.Code/100 == 2 {
		t.Errorf("%d reads are watched: %d %s", watched, w.Code, w.Body)
	}
}

// The checks apply to every encoding of a form, and metadata ignores a body.
func TestForms(t *testing.T) {
	a := openTestAPI(t, Default(), 1, nil, slog.New(slog.DiscardHandler))
	form := func(method, path string, fields ...string) *httptest.ResponseRecorder {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		for i := 0; i < len(fields); i += 2 {
			if err := m.WriteField(fields[i], fields[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(method, "/api/v1/"+path, &b)
		r.Header.Set("Content-Type", m.FormDataContentType())
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		return w
	}
	if w := form(http.MethodPost, "query", "query", strings.Repeat("-", 3000)+"m"); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "more than 2000 operators") {
		t.Errorf("a long query in a multipart form: %d %.300s", w.Code, w.Body)
	}
	if w := form(http.MethodPost, "query", "query", "1"); w.Code != http.StatusOK {
		t.Errorf("a query in a multipart form: %d %s", w.Code, w.Body)
	}
	if w := form(http.MethodPost, "query", "query", strings.Repeat("x", 2<<20)); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "too large") {
		t.Errorf("a large form: %d %.300s", w.Code, w.Body)
	}
	if w := form(http.MethodPost, "metadata", "metric", "no"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") == "" {
		t.Errorf("POST of metadata: %d %.300s", w.Code, w.Body)
	}
	if w := form(http.MethodGet, "metadata", "metric", "no"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "mete_node_up") {
		t.Errorf("metadata with a body: %d %.300s", w.Code, w.Body)
	}
	r := httptest.NewRequest(http.MethodGet, "/api/v1/query?query=1", http.NoBody)
	r.Header.Set("Origin", "https://elsewhere")
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, r); w.Code != http.StatusOK || w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a cross-origin request: %d %v", w.Code, w.Header())
	}
	// No handler reads more than maxBody bytes of a body.
	for _, path := range []string{"metadata", "rules", "alerts", "targets", "status/buildinfo", "query"} {
		body := strings.NewReader(strings.Repeat("x", 4<<20))
		r := httptest.NewRequest(http.MethodGet, "/api/v1/"+path, body)
		r.Header.Set("Content-Type", "multipart/form-data; boundary=x")
		if a.ServeHTTP(httptest.NewRecorder(), r); body.Len() < 2<<20 {
			t.Errorf("%s: only %d bytes of the body are unread", path, body.Len())
		}
	}
}

// A query may take longer than the server's read and write timeouts.
func TestLongQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := openTestAPI(t, Default(), 100, nil, slog.New(slog.DiscardHandler))
		// Occupy all turns for longer than these timeouts.
		for _, reader := range []string{"one", "two"} {
			for range a.small.MaxPerReader() {
				if a.small.Running() < a.small.Slots() {
					if err := a.small.Acquire(t.Context(), reader); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		time.AfterFunc(5*time.Second, func() { a.small.Release("two") })
		mine, its := net.Pipe()
		ln := &onePipe{its, make(chan struct{})}
		srv := &http.Server{Handler: a, ReadTimeout: 2 * time.Second, WriteTimeout: 2500 * time.Millisecond}
		go func() { _ = srv.Serve(ln) }() // until it is closed
		defer func() {
			if err := errors.Join(mine.Close(), srv.Close()); err != nil {
				t.Error(err)
			}
			time.Sleep(2 * watchInterval) // until the memory watch ends
		}()
		r := httptest.NewRequest(http.MethodPost, "/api/v1/query", strings.NewReader("query=1"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		began := time.Now()
		if err := r.Write(mine); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(mine), r)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%d %s, %v", res.StatusCode, b, err)
		}
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("answered after %v, want 5s", waited)
		}
		_ = res.Body.Close() // read to its end
	})
}

// onePipe is a listener with one connection, in memory.
type onePipe struct {
	conn net.Conn
	done chan struct{}
}

func (p *onePipe) Accept() (net.Conn, error) {
	if c := p.conn; c != nil {
		p.conn = nil
		return c, nil
	}
	<-p.done
	return nil, net.ErrClosed
}
func (p *onePipe) Close() error { close(p.done); return nil }
func (*onePipe) Addr() net.Addr { return &net.TCPAddr{} }
