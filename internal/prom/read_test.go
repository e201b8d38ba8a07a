package prom

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage/remote"
)

// Another Prometheus reads samples, as a stream and at once, in a turn of a large query.
func TestRead(t *testing.T) {
	a := many(t, Default(), 100, nil, slog.New(slog.DiscardHandler))
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
	// Who is slow to say what he asks has no turn meanwhile.
	body, slow := io.Pipe()
	time.AfterFunc(100*time.Millisecond, func() {
		if a.large.Running() != 0 {
			t.Error("a request that has not arrived has a turn")
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

// A query may take longer than a server gives requests and answers otherwise.
func TestLongQuery(t *testing.T) {
	a := many(t, Default(), 100, nil, slog.New(slog.DiscardHandler))
	a.limits.Timeout = 20 * time.Second
	srv := httptest.NewUnstartedServer(a)
	srv.Config.ReadTimeout, srv.Config.WriteTimeout = 2*time.Second, 2500*time.Millisecond
	srv.Start()
	defer srv.Close()
	// It waits for its turn for longer.
	for _, who := range []string{"one", "two"} {
		for range a.small.Most() {
			if a.small.Running() < a.small.Slots() {
				if err := a.small.Enter(t.Context(), who); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	time.AfterFunc(5*time.Second, func() { a.small.Leave("two") })
	res, err := http.Post(srv.URL+"/api/v1/query", "application/x-www-form-urlencoded", strings.NewReader("query=1"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if b, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%d %s, %v", res.StatusCode, b, err)
	}
}
