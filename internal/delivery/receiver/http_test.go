package receiver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/delivery/receiver"
	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/syncbuf"
	pb "mete.dev/mete/proto"
)

// identify identifies a client by the header Node, without proof.
func identify(r *http.Request) (node, cluster string, err error) {
	switch node := r.Header.Get("Node"); node {
	case "":
		return "", "", errors.New("no certificate")
	case "revoked":
		return "", "", fmt.Errorf("node %s is revoked: %w", node, fault.ErrDenied)
	default:
		return node, "lab", nil
	}
}

// server makes a server of a Receiver that is not started yet, and its listener.
func server(in *receiver.Receiver) (*httptest.Server, *pipes) {
	p := newPipes()
	return &httptest.Server{Listener: p, Config: &http.Server{Handler: in.Handler(identify)}}, p
}

// serve serves a Receiver over connections in memory.
func serve(t *testing.T, cfg receiver.Config, l receiver.Ledger) (*receiver.Receiver, *httptest.Server) {
	t.Helper()
	in := start(t, cfg, l)
	s, p := server(in)
	s.Start()
	s.Client().Transport.(*http.Transport).DialContext = p.dial
	t.Cleanup(s.Close)
	return in, s
}

// ask makes the request of an agent.
func ask(t *testing.T, s *httptest.Server, node string, c batch.Clock, sent []byte) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.URL+"/v1/batches", bytes.NewReader(sent))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Node", node)
	r.Header.Set("Content-Type", wire.MediaType)
	r.Header.Set(wire.HeaderBoot, c.Boot)
	r.Header.Set(wire.HeaderBoottime, strconv.FormatInt(c.Boottime, 10))
	r.Header.Set(wire.HeaderWall, strconv.FormatInt(c.Wall, 10))
	r.Header.Set(wire.HeaderBoots, wire.FormatBoots(c.Earlier))
	return r
}

// do returns the status, the reply and the problem, of which there is one.
func do(t *testing.T, s *httptest.Server, r *http.Request) (*http.Response, batch.Reply, fault.Problem) {
	t.Helper()
	w, err := s.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Body.Close() }()
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	var reply batch.Reply
	var p fault.Problem
	switch kind := w.Header.Get("Content-Type"); kind {
	case "application/json":
		err = json.Unmarshal(body, &reply)
	case fault.ProblemType:
		err = json.Unmarshal(body, &p)
		if p.Status != w.StatusCode || p.Title == "" {
			t.Errorf("status %s says %s", w.Status, body)
		}
	default:
		t.Errorf("%s came as %q: %s", w.Status, kind, body)
	}
	if err != nil {
		t.Errorf("%s: %v", body, err)
	}
	return w, reply, p
}

func TestVerdicts(t *testing.T) { synctest.Test(t, testVerdicts) }

func testVerdicts(t *testing.T) {
	l := newLedger()
	_, s := serve(t, quick(), l)
	m := newMachine("b1", time.Minute, 1)
	one := m.batch(t, m.window(time.Second))
	two := m.batch(t, m.window(time.Second))
	other := newMachine("b1", time.Minute, 1)
	other.began = m.began
	forged := other.batch(t, other.window(2*time.Second))
	for _, c := range []struct {
		sent    []byte
		status  int
		verdict batch.Verdict
		next    uint64
	}{
		{two, 409, batch.OutOfOrder, 1},
		{one, 200, batch.Accepted, 2},
		{one, 200, batch.Duplicate, 2},
		{forged, 409, batch.Conflict, 2},
		{two, 200, batch.Accepted, 3},
	} {
		w, r, _ := do(t, s, ask(t, s, "n1", m.clock(), c.sent))
		if w.StatusCode != c.status || r.Verdict != c.verdict || r.Next != c.next {
			t.Errorf("%s, %v, next %d; want %d, %v, next %d", w.Status, r.Verdict, r.Next, c.status, c.verdict, c.next)
		}
	}
	clone := newMachine("b2", time.Minute, 2)
	do(t, s, ask(t, s, "n1", clone.clock(), clone.batch(t, clone.window(time.Second))))
	m.at = int64(time.Since(m.began))
	do(t, s, ask(t, s, "n1", m.clock(), m.batch(t, m.window(time.Millisecond))))
	if w, r, _ := do(t, s, ask(t, s, "n1", clone.clock(), clone.batch(t, clone.window(time.Second)))); w.StatusCode != 409 || r.Verdict != batch.Clone || r.Next != 1 {
		t.Errorf("a clone got %s, %v", w.Status, r.Verdict)
	}
}

// TestLogOfRefused: the log has why a batch is refused, and not that an agent asks by an empty one what the server reads.
func TestLogOfRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		in, stop := runLogged(t, quick(), newLedger(), nil, &log)
		t.Cleanup(stop)
		s, p := server(in)
		s.Start()
		s.Client().Transport.(*http.Transport).DialContext = p.dial
		t.Cleanup(s.Close)
		m := newMachine("b1", time.Minute, 1)
		do(t, s, ask(t, s, "n1", m.clock(), nil))
		if log.String() != "" {
			t.Errorf("an empty batch is in the log: %s", &log)
		}
		_, _, problem := do(t, s, ask(t, s, "n1", m.clock(), []byte("garbage")))
		if !strings.Contains(log.String(), "request refused") || problem.Detail == "" || !strings.Contains(log.String(), problem.Detail) {
			t.Errorf("%q is not in the log: %s", problem.Detail, &log)
		}
	})
}

// TestRefused checks that a request that cannot be a batch is refused with an
// explanation and changes nothing.
func TestRefused(t *testing.T) { synctest.Test(t, testRefused) }

func testRefused(t *testing.T) {
	l := newLedger()
	in, s := serve(t, quick(), l)
	m := newMachine("b1", time.Minute, 1)
	sent := m.batch(t, m.window(time.Second))
	secret := "user-content-in-a-batch"
	for name, c := range map[string]struct {
		change func(r *http.Request) *http.Request
		status int
	}{
		"no certificate":   {func(r *http.Request) *http.Request { r.Header.Del("Node"); return r }, 401},
		"revoked":          {func(r *http.Request) *http.Request { r.Header.Set("Node", "revoked"); return r }, 403},
		"another method":   {func(r *http.Request) *http.Request { r.Method = http.MethodPut; return r }, 405},
		"a GET":            {func(r *http.Request) *http.Request { r.Method, r.Body, r.ContentLength = "GET", nil, 0; return r }, 405},
		"another type":     {func(r *http.Request) *http.Request { r.Header.Set("Content-Type", "text/plain"); return r }, 415},
		"no type":          {func(r *http.Request) *http.Request { r.Header.Del("Content-Type"); return r }, 415},
		"an encoding":      {func(r *http.Request) *http.Request { r.Header.Set("Content-Encoding", "gzip"); return r }, 415},
		"no boot":          {func(r *http.Request) *http.Request { r.Header.Del(wire.HeaderBoot); return r }, 400},
		"no boottime":      {func(r *http.Request) *http.Request { r.Header.Del(wire.HeaderBoottime); return r }, 400},
		"odd wall":         {func(r *http.Request) *http.Request { r.Header.Set(wire.HeaderWall, "1e9"); return r }, 400},
		"wall in letters":  {func(r *http.Request) *http.Request { r.Header.Set(wire.HeaderWall, "a"); return r }, 400},
		"boottime below 0": {func(r *http.Request) *http.Request { r.Header.Set(wire.HeaderBoottime, "-1"); return r }, 400},
		"garbage":          {func(r *http.Request) *http.Request { return ask(t, s, "n1", m.clock(), []byte(secret)) }, 400},
		"nothing":          {func(r *http.Request) *http.Request { return ask(t, s, "n1", m.clock(), nil) }, 400},
		"newer":            {func(r *http.Request) *http.Request { return ask(t, s, "n1", m.clock(), newer(t)) }, 503},
		"cut short":        {func(r *http.Request) *http.Request { return ask(t, s, "n1", m.clock(), sent[:len(sent)-3]) }, 400},
		"too large":        {func(r *http.Request) *http.Request { return ask(t, s, "n1", m.clock(), make([]byte, 5<<20)) }, 413},
		"too large, unsaid": {func(r *http.Request) *http.Request {
			r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 5<<20)), -1
			return r
		}, 413},
		"another path": {func(r *http.Request) *http.Request { r.URL.Path = "/v1/nothing"; return r }, 404},
		"lost: garbage": {func(r *http.Request) *http.Request {
			r.URL.Path = "/v1/lost"
			r.Header.Set("Content-Type", "application/json")
			return r
		}, 400},
		"lost: another type": {func(r *http.Request) *http.Request { r.URL.Path = "/v1/lost"; return r }, 415},
	} {
		w, _, p := do(t, s, c.change(ask(t, s, "n1", m.clock(), sent)))
		if w.StatusCode != c.status {
			t.Errorf("%s: %s, want %d", name, w.Status, c.status)
		}
		if got := w.Header.Get(wire.HeaderReads); got != wire.LatestFormat().String() {
			t.Errorf("%s: the answer says that the server reads %q", name, got)
		}
		if c.status == 503 && w.Header.Get("Retry-After") != "60" {
			t.Errorf("%s: Retry-After %q, want 60", name, w.Header.Get("Retry-After"))
		}
		if c.status == 405 && w.Header.Get("Allow") != "POST" {
			t.Errorf("%s: allows %q", name, w.Header.Get("Allow"))
		}
		if strings.Contains(p.Detail, secret) {
			t.Errorf("%s: %s", name, p.Detail)
		}
	}
	if n := len(l.taken()); n != 0 || in.Stats().Accepted != 0 {
		t.Errorf("%d batches were booked", n)
	}
	if boot, ok := in.LiveBoot("n1"); ok {
		t.Errorf("a refused batch made %q live", boot)
	}
	do(t, s, ask(t, s, "n1", m.clock(), sent))
	if n := len(l.taken()); n != 1 {
		t.Errorf("after all that %d batches are booked, want the one", n)
	}
}

// newer is a batch of a layout to come.
func newer(t *testing.T) []byte {
	t.Helper()
	raw, err := proto.Marshal(&pb.Batch{Version: 1000, Stream: make([]byte, 16), Number: 1})
	if err != nil {
		t.Fatal(err)
	}
	w, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(raw, nil)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestPostLost(t *testing.T) { synctest.Test(t, testPostLost) }

func testPostLost(t *testing.T) {
	l := newLedger()
	_, s := serve(t, quick(), l)
	post := func(lost batch.Loss) (*http.Response, batch.Reply) {
		b, err := json.Marshal(lost)
		if err != nil {
			t.Fatal(err)
		}
		r := ask(t, s, "n1", batch.Clock{}, b)
		r.URL.Path = "/v1/lost"
		r.Header.Set("Content-Type", "application/json; charset=utf-8")
		w, reply, _ := do(t, s, r)
		return w, reply
	}
	lost := batch.Loss{Stream: batch.Stream{7}, From: 1, To: 2, Hash: batch.Hash{9}, Gap: usage.Gap{From: time.Unix(5e8, 0).UTC(), To: time.Unix(6e8, 5).UTC(), Reason: usage.Forgotten, Detail: "x"}}
	if w, r := post(lost); w.StatusCode != 200 || r.Verdict != batch.Accepted || r.Next != 3 {
		t.Errorf("%s, %+v", w.Status, r)
	}
	if len(l.lost) != 1 || l.lost[0].Stream != lost.Stream || l.lost[0].Hash != lost.Hash || l.lost[0].Gap.Reason != usage.Forgotten || !l.lost[0].Gap.From.Equal(lost.Gap.From) {
		t.Errorf("booked %+v", l.lost)
	}
	if w, r := post(lost); w.StatusCode != 200 || r.Verdict != batch.Duplicate {
		t.Errorf("again: %s, %+v", w.Status, r)
	}
	lost.From, lost.To = 8, 9
	if w, r := post(lost); w.StatusCode != 409 || r.Verdict != batch.OutOfOrder || r.Next != 3 {
		t.Errorf("too early: %s, %+v", w.Status, r)
	}
}

// dripping is a connection on which a batch is sent: one byte of it and the end
// of the chunk each 10 ms. It returns what the server says, and when it closes.
func dripping(t *testing.T, s *httptest.Server, length string, drops int) (got string, after time.Duration) {
	t.Helper()
	began := time.Now()
	c, err := s.Listener.(*pipes).dial(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		b, _ := io.ReadAll(c) // until the server closes
		got, after = string(b), time.Since(began)
	}()
	_, err = fmt.Fprintf(c, "POST /v1/batches HTTP/1.1\r\nHost: x\r\nNode: slow\r\nConnection: close\r\nContent-Type: %s\r\nMete-Boot: b\r\nMete-Boottime-Ns: 1\r\nMete-Wall-Ns: 1\r\n%s\r\n\r\n", wire.MediaType, length)
	for ; err == nil && drops > 0; drops-- {
		time.Sleep(10 * time.Millisecond)
		_, err = io.WriteString(c, "1\r\nx\r\n")
	}
	if err == nil && drops == 0 && !strings.HasPrefix(length, "Content") {
		_, _ = io.WriteString(c, "0\r\n\r\n")
	}
	<-answered
	return got, after
}

// A sender that trickles for too long, or sends nothing any more, is cut off; a
// slow one is not.
func TestSlowSender(t *testing.T) { synctest.Test(t, testSlowSender) }

func testSlowSender(t *testing.T) {
	const chunked, known = "Transfer-Encoding: chunked", "Content-Length: 100000"
	for _, c := range []struct {
		name          string
		idle, request time.Duration
		length        string
		drops, status int
		after         time.Duration
	}{
		{"silent", 300 * time.Millisecond, time.Hour, known, 0, 408, 300 * time.Millisecond},
		{"silent, of no known length", 300 * time.Millisecond, time.Hour, chunked, -2, 408, 300 * time.Millisecond},
		{"trickling", time.Hour, time.Second, known, 1 << 20, 408, time.Second},
		{"trickling, of no known length", time.Hour, time.Second, chunked, 1 << 20, 408, time.Second},
		{"slow, for longer than it may be idle", 3 * time.Second, time.Hour, chunked, 500, 400, 5 * time.Second},
	} {
		cfg := quick()
		cfg.IdleTimeout, cfg.RequestTimeout = c.idle, c.request
		in, s := serve(t, cfg, newLedger())
		if got, after := dripping(t, s, c.length, c.drops); !strings.HasPrefix(got, fmt.Sprint("HTTP/1.1 ", c.status, " ")) || after != c.after {
			t.Errorf("%s: %.60q after %v, want %d after %v", c.name, got, after, c.status, c.after)
		}
		if in.Stats().Accepted != 0 {
			t.Errorf("%s: something was booked", c.name)
		}
		m := newMachine("b", time.Minute, 1)
		if w, r, _ := do(t, s, ask(t, s, "n1", m.clock(), m.batch(t, m.window(time.Second)))); r.Verdict != batch.Accepted {
			t.Errorf("%s: then one who is not got %s", c.name, w.Status)
		}
	}
}

// A connection is not broken while its batch waits to be booked, in HTTP/1.1 and
// in HTTP/2; in both, one who sends nothing more is cut off.
func TestSlowLedger(t *testing.T) { synctest.Test(t, testSlowLedger) }

func testSlowLedger(t *testing.T) {
	for _, two := range []bool{false, true} {
		cfg := quick()
		cfg.IdleTimeout = 200 * time.Millisecond
		l := newLedger()
		l.hold = make(chan struct{})
		in := start(t, cfg, l)
		s, p := server(in)
		s.EnableHTTP2 = two
		s.StartTLS()
		s.Client().Transport.(*http.Transport).DialContext = p.dial
		defer s.Close()
		time.AfterFunc(5*cfg.IdleTimeout, func() { close(l.hold) })
		m := newMachine("b", time.Minute, 1)
		w, r, _ := do(t, s, ask(t, s, "n1", m.clock(), m.batch(t, m.window(time.Second))))
		if r.Verdict != batch.Accepted || (w.ProtoMajor == 2) != two {
			t.Errorf("%s: %s, %v", w.Proto, w.Status, r.Verdict)
		}
		body, never := io.Pipe()
		slow := ask(t, s, "n1", m.clock(), nil)
		slow.Body, slow.ContentLength = body, 1000
		began := time.Now()
		if w, _, _ := do(t, s, slow); w.StatusCode != 408 || time.Since(began) != cfg.IdleTimeout {
			t.Errorf("%s: one who sends nothing got %s after %v", w.Proto, w.Status, time.Since(began))
		}
		_ = never.Close()
	}
}

func TestTooManyRequests(t *testing.T) { synctest.Test(t, testTooManyRequests) }

func testTooManyRequests(t *testing.T) {
	cfg := quick()
	cfg.Rate, cfg.Burst = 0.1, 3
	l := newLedger()
	in, s := serve(t, cfg, l)
	m := newMachine("b", time.Minute, 1)
	sent := m.batch(t, m.window(time.Second))
	for i := range 5 {
		w, _, _ := do(t, s, ask(t, s, "n1", m.clock(), sent))
		if limited := w.StatusCode == 429; limited != (i >= 3) {
			t.Errorf("request %d: %s", i, w.Status)
		} else if after := w.Header.Get("Retry-After"); limited && after != "10" {
			t.Errorf("retry after %q, want 10", after)
		}
	}
	if w, _, _ := do(t, s, ask(t, s, "n2", m.clock(), sent)); w.StatusCode != 200 {
		t.Errorf("another node: %s", w.Status)
	}
	if s := in.Stats(); s.RateLimited != 2 {
		t.Errorf("stats %+v", s)
	}
}

// TestOverload checks that a request beyond the limits is refused at once and may be
// sent again, and that small requests have room beside large ones.
func TestOverload(t *testing.T) { synctest.Test(t, testOverload) }

func testOverload(t *testing.T) {
	cfg := quick()
	cfg.BodyBytes, cfg.Parallel = int64(cfg.Limits.Sent), 2
	l := newLedger()
	l.hold = make(chan struct{})
	in, s := serve(t, cfg, l)
	var wg sync.WaitGroup
	small := func(i byte) *http.Request {
		m := newMachine("b", time.Minute, i)
		return ask(t, s, "n1", m.clock(), m.batch(t, m.window(time.Second)))
	}
	for i := range byte(2) {
		r := small(i)
		wg.Go(func() { do(t, s, r) })
	}
	until(t, "two batches are queued", func() bool { return in.Stats().Queue >= 8 })
	if w, _, _ := do(t, s, small(3)); w.StatusCode != 429 {
		t.Errorf("a third request of a node: %s, want 429", w.Status)
	}
	large := func() *http.Request { return ask(t, s, "n2", batch.Clock{Boot: "b"}, make([]byte, cfg.Limits.Sent)) }
	slow, answer := large(), httptest.NewRecorder()
	body, more := io.Pipe()
	slow.Body = body
	wg.Go(func() { in.Handler(identify).ServeHTTP(answer, slow) }) // without a connection that would keep what is written
	const begin = 1 << 20
	if _, err := more.Write(make([]byte, begin)); err != nil {
		t.Fatal(err)
	}
	w, _, p := do(t, s, large())
	if w.StatusCode != 503 || w.Header.Get("Retry-After") == "" || p.Title == "" {
		t.Errorf("more than fits: %s, %+v", w.Status, p)
	}
	close(l.hold)
	r := small(4)
	r.Header.Set("Node", "n3")
	if w, _, _ := do(t, s, r); w.StatusCode != 200 {
		t.Errorf("a small one beside a large one: %s, want 200", w.Status)
	}
	if _, err := more.Write(make([]byte, cfg.Limits.Sent-begin)); err != nil {
		t.Fatal(err)
	}
	_ = more.Close()
	wg.Wait()
	if answer.Code != 400 {
		t.Errorf("the slow one: %d, want 400", answer.Code)
	}
	// And what was held is free again.
	for range 2 {
		if w, _, _ := do(t, s, large()); w.StatusCode != 400 {
			t.Errorf("afterwards: %s, want 400", w.Status)
		}
	}
}

// The log says who was refused, and nothing of what they sent.
func TestLogHoldsNoBody(t *testing.T) { synctest.Test(t, testLogHoldsNoBody) }

func testLogHoldsNoBody(t *testing.T) {
	var log syncbuf.Buffer
	l := newLedger()
	in := receiver.New(quick(), l, nil, slog.New(slog.NewTextHandler(&log, nil))) // what is refused needs no Run
	s, p := server(in)
	s.Start()
	s.Client().Transport.(*http.Transport).DialContext = p.dial
	defer s.Close()
	m := newMachine("b1", time.Minute, 1)
	for range 3 {
		do(t, s, ask(t, s, "n1", m.clock(), []byte("SECRET")))
	}
	if s := log.String(); !strings.Contains(s, "node=n1") || strings.Contains(s, "SECRET") || strings.Count(s, "\n") != 1 {
		t.Errorf("log:\n%s", s)
	}
}

// TestLogOfFailures checks that a transaction that fails is logged, and a batch that the ledger does not
// take, with its node.
func TestLogOfFailures(t *testing.T) { synctest.Test(t, testLogOfFailures) }

func testLogOfFailures(t *testing.T) {
	var log syncbuf.Buffer
	l := newLedger()
	in, stop := runLogged(t, quick(), l, nil, &log)
	defer stop()
	s, p := server(in)
	s.Start()
	s.Client().Transport.(*http.Transport).DialContext = p.dial
	defer s.Close()
	m := newMachine("b1", time.Minute, 1)
	first, second := m.batch(t, m.window(time.Second)), m.batch(t, m.window(time.Second))
	if w, _, _ := do(t, s, ask(t, s, "n1", m.clock(), second)); w.StatusCode != 409 {
		t.Errorf("the second one first: %s", w.Status)
	}
	if text := log.String(); !strings.Contains(text, "batch not taken") || !strings.Contains(text, "node=n1") || strings.Count(text, "\n") != 1 {
		t.Errorf("log of a batch that was not taken:\n%s", text)
	}
	l.fail = func(*batch.Entry) error { return errors.New("disk full") }
	w, _, _ := do(t, s, ask(t, s, "n1", m.clock(), first))
	if w.StatusCode != 503 || w.Header.Get("Retry-After") != "5" {
		t.Errorf("while the ledger fails: %s, retry after %q", w.Status, w.Header.Get("Retry-After"))
	}
	if text := log.String(); strings.Count(text, "level=ERROR") != 1 || !strings.Contains(text, "disk full") {
		t.Errorf("log of a transaction that failed:\n%s", text)
	}
}

// TestGone checks the answer to a client that gave up while its batch waits: it may be a proxy that
// passes the answer on.
func TestGone(t *testing.T) { synctest.Test(t, testGone) }

func testGone(t *testing.T) {
	l := newLedger()
	l.hold = make(chan struct{})
	in := start(t, quick(), l)
	m := newMachine("b1", time.Minute, 1)
	for _, gone := range []func(context.Context) (context.Context, context.CancelFunc){
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			time.AfterFunc(time.Second, cancel)
			return ctx, cancel
		},
	} {
		ctx, cancel := gone(t.Context())
		r := ask(t, &httptest.Server{URL: "http://x"}, "n1", m.clock(), m.batch(t, m.window(time.Second))).WithContext(ctx)
		answer := httptest.NewRecorder()
		in.Handler(identify).ServeHTTP(answer, r)
		cancel()
		if answer.Code != 503 || answer.Header().Get("Retry-After") != "5" || !strings.Contains(answer.Body.String(), "the request was canceled") {
			t.Errorf("%d, retry after %q: %s", answer.Code, answer.Header().Get("Retry-After"), answer.Body)
		}
	}
	close(l.hold)
}

// TestLossBody checks how long a report of lost batches may be.
func TestLossBody(t *testing.T) { synctest.Test(t, testLossBody) }

func testLossBody(t *testing.T) {
	_, s := serve(t, quick(), newLedger())
	for n, status := range map[int]int{64 << 10: 200, 64<<10 + 1: 413} {
		body := []byte(`{"stream":"07000000000000000000000000000000","from":"1","to":"2"}`)
		r := ask(t, s, "n1", batch.Clock{}, append(body, bytes.Repeat([]byte(" "), n-len(body))...))
		r.URL.Path = "/v1/lost"
		r.Header.Set("Content-Type", "application/json")
		if w, _, _ := do(t, s, r); w.StatusCode != status {
			t.Errorf("%d bytes: %s, want %d", n, w.Status, status)
		}
	}
}

// Many nodes at once: each gets its own answers, and all is booked once.
func TestManyNodes(t *testing.T) { synctest.Test(t, testManyNodes) }

func testManyNodes(t *testing.T) {
	l := newLedger()
	in, s := serve(t, receiver.Default(), l)
	const nodes, batches = 30, 5
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			m := newMachine(fmt.Sprint("boot", i), time.Minute, byte(i))
			for n := range batches {
				sent := m.batch(t, m.window(time.Second))
				for range 2 {
					if w, r, _ := do(t, s, ask(t, s, fmt.Sprint("n", i), m.clock(), sent)); r.Next != uint64(n+2) {
						t.Errorf("node %d: %s, %+v", i, w.Status, r)
					}
				}
			}
		})
	}
	wg.Wait()
	if st := in.Stats(); st.Accepted != nodes*batches || st.Duplicates != nodes*batches || len(in.Snapshots()) != nodes {
		t.Errorf("stats %+v, %d nodes", st, len(in.Snapshots()))
	}
	var sum int64
	for _, u := range l.minutes {
		sum += u.Amount[usage.CPU]
	}
	if want := int64(nodes * batches * 4 * time.Second); sum != want {
		t.Errorf("booked %d, want %d", sum, want)
	}
}
