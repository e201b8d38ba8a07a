package attack_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
)

// attackStage keeps what takes long or needs real time out of the default gate.
func attackStage(t *testing.T) {
	t.Helper()
	testkit.Stage(t, "attack", "attacks real programs for half a minute each")
}

// TestIdleConnections holds connections without a credential against a server with few
// descriptors, and opens another one for each that the server closes: a viewer is served meanwhile.
func TestIdleConnections(t *testing.T) {
	attackStage(t)
	s := &scene{Server: attack.StartServer(t, programs, attack.Config{Files: 300})}
	viewer := s.Token(t, "viewer")
	address := strings.TrimPrefix(s.URL, "https://")
	// Of another address than the viewer: clients of one address can keep each other out.
	dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	var wait sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	var opened atomic.Int64
	for range 400 {
		wait.Go(func() {
			for ctx.Err() == nil {
				c, err := dialer.DialContext(ctx, "tcp", address)
				if err != nil {
					time.Sleep(100 * time.Millisecond) // refused
					continue
				}
				opened.Add(1)
				left := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = io.WriteString(c, http2.ClientPreface)
				_ = http2.NewFramer(c, c).WriteSettings()
				_, _ = io.Copy(io.Discard, c) // until the server closes it
				_ = c.Close()
				left()
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	time.Sleep(2 * time.Second) // until the server lets no more in
	for range 20 {
		c := attack.NewClient(t)
		c.Timeout = 8 * time.Second // silent connections are closed after ten
		a := attack.Do(t, c, http.MethodGet, s.URL+"/v1/nodes", nil, attack.Bearer(viewer)...)
		if a.Status != http.StatusOK {
			t.Errorf("a viewer beside idle connections: %d %s", a.Status, a.Body)
			break
		}
		time.Sleep(200 * time.Millisecond) // while connections come
	}
	stop()
	wait.Wait()
	t.Logf("%d connections", opened.Load())
	s.Check(t, mostMemory)
}

// TestStreams opens many streams with unfinished requests to enroll, on many connections without a
// credential: the server stays within its memory, and a viewer is served.
func TestStreams(t *testing.T) {
	attackStage(t)
	s := &scene{Server: attack.StartServer(t, programs, attack.Config{Memory: mostMemory, Env: []string{"GOMEMLIMIT=384MiB"}})}
	viewer := s.Token(t, "viewer")
	var wait sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for i := range 300 {
		wait.Go(func() {
			s.openStreams(ctx, net.IPv4(127, 0, 0, byte(2+i%8)))
		})
	}
	for range 10 {
		c := attack.NewClient(t)
		if a := attack.Do(t, c, http.MethodGet, s.URL+"/v1/nodes", nil, attack.Bearer(viewer)...); a.Status != http.StatusOK {
			t.Errorf("a viewer beside streams: %d %s", a.Status, a.Body)
		}
		time.Sleep(time.Second) // while streams come
	}
	t.Logf("peak RSS %d MiB", s.PeakRSS()>>20)
	stop()
	wait.Wait()
	s.Check(t, mostMemory)
}

// openStreams opens streams on a connection of an address, and holds them until the server closes it.
func (s *scene) openStreams(ctx context.Context, from net.IP) {
	d := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}, Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(s.URL, "https://"))
	if err != nil {
		return // refused
	}
	defer func() { _ = c.Close() }()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	w := bufio.NewWriter(c)
	_, _ = w.WriteString(http2.ClientPreface)
	f := http2.NewFramer(w, c)
	_ = f.WriteSettings()
	var block bytes.Buffer
	h := hpack.NewEncoder(&block)
	for id := uint32(1); id < 500; id += 2 {
		block.Reset()
		for _, p := range [][2]string{{":method", "POST"}, {":scheme", "https"}, {":authority", "x"}, {":path", "/v1/enroll"}, {"content-type", "application/json"}, {"x-pad", strings.Repeat("x", 3000)}} {
			_ = h.WriteField(hpack.HeaderField{Name: p[0], Value: p[1]})
		}
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}) != nil || f.WriteData(id, false, []byte("{")) != nil || w.Flush() != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c) // until the server closes it
}

// TestRapidReset opens and resets streams of HTTP/2 as fast as it can for ten seconds, with
// queries: other requests are answered, and memory stays bounded.
func TestRapidReset(t *testing.T) {
	attackStage(t)
	s := newScene(t)
	end := time.Now().Add(10 * time.Second)
	var wait sync.WaitGroup
	streams := make([]int, 4)
	for w := range streams {
		wait.Go(func() {
			for time.Now().Before(end) {
				streams[w] += s.reset(end)
			}
		})
	}
	slow := time.Duration(0)
	for time.Now().Before(end) {
		a := s.Do(t, http.MethodGet, "/v1/nodes", nil, attack.Bearer(s.admin)...)
		if slow = max(slow, a.Took); a.Status != http.StatusOK {
			t.Errorf("another request: %d %s", a.Status, a.Body)
		}
	}
	wait.Wait()
	t.Logf("%d streams; other requests at most %v; peak RSS %d MiB", streams, slow, s.PeakRSS()>>20)
	s.Check(t, mostMemory)
}

// reset opens and resets streams on one connection until the server closes it.
func (s *scene) reset(end time.Time) (n int) {
	c, err := tls.Dial("tcp", strings.TrimPrefix(s.URL, "https://"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		return 0
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(end)
	w := bufio.NewWriter(c)
	_, _ = w.WriteString(http2.ClientPreface)
	f := http2.NewFramer(w, c)
	_ = f.WriteSettings()
	go func() { _, _ = io.Copy(io.Discard, c) }() // so that the server can write
	var block bytes.Buffer
	h := hpack.NewEncoder(&block)
	for id := uint32(1); time.Now().Before(end); id += 2 {
		block.Reset()
		for _, p := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "x"}, {":path", "/api/v1/query?query=max_over_time(up[1h:1s])"}, {"authorization", "Bearer " + s.viewer}} {
			_ = h.WriteField(hpack.HeaderField{Name: p[0], Value: p[1]})
		}
		if f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}) != nil || f.WriteRSTStream(id, http2.ErrCodeCancel) != nil || w.Flush() != nil {
			return n
		}
		n++
	}
	return n
}

// TestSlowBodies sends bodies byte by byte on many streams, to every path that reads one.
func TestSlowBodies(t *testing.T) {
	attackStage(t)
	s := newScene(t)
	var wait sync.WaitGroup
	began := time.Now()
	for i := range 200 {
		path := []string{"/v1/enroll", "/v1/renew", "/v1/batches", "/v1/states", "/api/v1/write", "/api/v1/read", "/api/v1/query", "/v1/page-token"}[i%8]
		wait.Go(func() {
			r, w := io.Pipe()
			go func() {
				for time.Since(began) < 20*time.Second {
					if _, err := w.Write([]byte(" ")); err != nil {
						return
					}
					time.Sleep(500 * time.Millisecond)
				}
				_ = w.Close()
			}()
			attack.Do(t, attack.NewClient(t), http.MethodPost, s.URL+path, r, append(attack.Bearer(s.viewer), "Content-Type", "application/json")...)
			_ = r.Close()
		})
	}
	for time.Since(began) < 20*time.Second {
		if a := s.Do(t, http.MethodGet, "/v1/nodes", nil, attack.Bearer(s.admin)...); a.Status != http.StatusOK {
			t.Errorf("beside slow bodies: %d %s", a.Status, a.Body)
		}
		s.victimSends(t)
		time.Sleep(time.Second)
	}
	wait.Wait()
	s.Check(t, mostMemory)
}

// TestLongQuery asks for functions over long subqueries of one series at thousands of steps,
// which would take minutes to hours: each ends at the timeout of queries, and with its client and
// its server.
func TestLongQuery(t *testing.T) {
	attackStage(t)
	s := attack.StartServer(t, programs, attack.Config{}, "--query-timeout", "3s")
	viewer := s.Token(t, "viewer")
	for _, query := range []string{
		"quantile_over_time(0.5, (vector(1))[1d:100ms])",
		"sum(predict_linear((sin(vector(time())))[1d:100ms], 3600))",
		"quantile_over_time(0.5, quantile_over_time(0.5, vector(1)[1h:100ms])[1h:100ms])",
	} {
		a := s.Do(t, http.MethodGet, "/api/v1/query_range?start=0&end=10000&step=1&query="+url.QueryEscape(query), nil, attack.Bearer(viewer)...)
		t.Logf("%s: %d after %v", query, a.Status, a.Took)
		if a.Status != http.StatusServiceUnavailable || !strings.Contains(a.Body, "--query-timeout") || a.Took > 15*time.Second {
			t.Errorf("%s: %d %s after %v; want 503 after 3s", query, a.Status, a.Body, a.Took)
		}
	}
	s.Check(t, mostMemory)

	// Neither a query whose client has left nor one in flight keeps a server alive.
	s = attack.StartServer(t, programs, attack.Config{}, "--query-timeout", "10m")
	viewer = s.Token(t, "viewer")
	long := s.URL + "/api/v1/query_range?start=0&end=10000&step=1&query=" + url.QueryEscape("quantile_over_time(0.5, (vector(1))[1d:100ms])")
	leaves := attack.NewClient(t)
	leaves.Timeout = 3 * time.Second // the small attempt takes 2
	if a := attack.Do(t, leaves, http.MethodGet, long, nil, attack.Bearer(viewer)...); a.Status != 0 {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	var wait sync.WaitGroup
	wait.Go(func() { attack.Do(t, attack.NewClient(t), http.MethodGet, long, nil, attack.Bearer(viewer)...) })
	time.Sleep(3 * time.Second) // while it runs
	began := time.Now()
	err := s.Stop()
	t.Logf("the server ended after %v: %v", time.Since(began), err)
	if time.Since(began) > 15*time.Second {
		t.Error("a query kept the server alive")
	}
	wait.Wait()
}

// TestSeriesFlood writes as many series with as large labels as a writer's token lets it, and
// lists them: the server stays within its memory.
func TestSeriesFlood(t *testing.T) {
	attackStage(t)
	s := newScene(t)
	for i := range 400 {
		var list []attack.Sample
		for k := range 200 {
			labels := []string{"__name__", "app_flood", "n", fmt.Sprint(i, "-", k)}
			for l := range 7 {
				labels = append(labels, fmt.Sprintf("l%d", l), strings.Repeat("x", 1000)+fmt.Sprint(i, k))
			}
			list = append(list, attack.Sample{Labels: labels, Values: []float64{1}})
		}
		if a := s.Write(t, s.writer, time.Second, list...); a.Status == 0 {
			t.Fatalf("request %d: %s", i, a.Body)
		}
	}
	for _, path := range []string{"/api/v1/series?match[]=app_flood", "/api/v1/label/l1/values", "/api/v1/labels", "/api/v1/query?query=app_flood", "/api/v1/query?query=count(app_flood)"} {
		a := s.Do(t, http.MethodGet, path, nil, attack.Bearer(s.viewer)...)
		t.Logf("%s: %d, %d bytes, %v", path, a.Status, len(a.Body), a.Took)
	}
	t.Logf("peak RSS %d MiB", s.PeakRSS()>>20)
	s.Check(t, 2<<30)
}
