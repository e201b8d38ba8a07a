// Package prometheus runs a Prometheus server for tests.
package prometheus

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"

	"mete.dev/mete/internal/testkit"
)

// A Server is a running Prometheus.
type Server struct {
	URL string // http://127.0.0.1:PORT
}

// Start runs a Prometheus with a configuration until the test ends, and waits until it
// answers.
func Start(t testing.TB, config string, args ...string) *Server {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	addr, err := free()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := exec.Command("prometheus", append([]string{"--config.file=" + file, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--web.listen-address=" + addr}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // killed below
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // its data is temporary
		<-done
		if t.Failed() {
			t.Logf("prometheus:\n%s", out.Bytes()[max(0, out.Len()-8<<10):])
		}
	})
	s := &Server{URL: "http://" + addr}
	testkit.Eventually(t, "prometheus answers or has exited", func() bool {
		select {
		case <-done:
			t.Fatal("prometheus has exited")
		default:
		}
		return s.ready() == nil
	})
	return s
}

func (s *Server) ready() error {
	r, err := http.Get(s.URL + "/-/ready")
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return errors.New(r.Status)
	}
	return nil
}

// free returns a free address of this machine.
func free() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// Write sends series by remote write 1.0, ordered by time. The server must run with
// --web.enable-remote-write-receiver.
func (s *Server) Write(list []prompb.TimeSeries) error {
	type sample struct {
		series int
		prompb.Sample
	}
	var all []sample
	for i := range list {
		for _, one := range list[i].Samples {
			all = append(all, sample{i, one})
		}
	}
	slices.SortStableFunc(all, func(a, b sample) int { return cmp.Compare(a.Timestamp, b.Timestamp) })
	for part := range slices.Chunk(all, 10_000) {
		at := map[int]int{}
		var req prompb.WriteRequest
		for _, one := range part {
			i, ok := at[one.series]
			if !ok {
				i = len(req.Timeseries)
				at[one.series] = i
				req.Timeseries = append(req.Timeseries, prompb.TimeSeries{Labels: list[one.series].Labels})
			}
			req.Timeseries[i].Samples = append(req.Timeseries[i].Samples, one.Sample)
		}
		if err := s.post(&req); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) post(req *prompb.WriteRequest) error {
	b, err := req.Marshal()
	if err != nil {
		return err
	}
	r, err := http.Post(s.URL+"/api/v1/write", "application/x-protobuf", bytes.NewReader(snappy.Encode(nil, b)))
	if err != nil {
		return err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode/100 != 2 {
		text, _ := io.ReadAll(r.Body) // best effort, for the error text
		return fmt.Errorf("%s: %s", r.Status, text)
	}
	return nil
}

// An Answer is an answer of the API.
type Answer struct {
	Status    string          `json:"status"`
	Data      json.RawMessage `json:"data"`
	ErrorType string          `json:"errorType"`
	Error     string          `json:"error"`
}

// A Client calls the API of a Prometheus or a compatible server.
type Client struct {
	URL   string
	Token string // "" for none
}

// Client returns a client of the server.
func (s *Server) Client() Client { return Client{URL: s.URL} }

// web trusts any certificate, since servers of a test have their own authority.
var web = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

// maxAddress is how long a query in an address may be; a longer one is posted.
const maxAddress = 8 << 10

// Ask requests a path below /api/v1/ with name, value, name, value, ...
func (c Client) Ask(path string, form ...string) (a Answer, err error) {
	q := url.Values{}
	for i := 0; i+1 < len(form); i += 2 {
		q.Add(form[i], form[i+1])
	}
	method, address, query, body := http.MethodGet, strings.TrimSuffix(c.URL, "/")+"/api/v1/"+path, q.Encode(), ""
	if len(query) > maxAddress {
		method, body = http.MethodPost, query
	} else {
		address += "?" + query
	}
	r, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if c.Token != "" {
		r.Header.Set("Authorization", "Bearer "+c.Token)
	}
	got, err := web.Do(r)
	if err != nil {
		return a, err
	}
	defer func() { _ = got.Body.Close() }()
	return a, json.NewDecoder(got.Body).Decode(&a)
}

// A Series is one series of an answer.
type Series struct {
	Metric map[string]string
	Value  [2]any
	Values [][2]any
}

// Query returns the answer of an instant query.
func (c Client) Query(query string) ([]Series, error) {
	a, err := c.Ask("query", "query", query)
	if err != nil {
		return nil, err
	}
	if a.Status != "success" {
		return nil, errors.New(a.Error)
	}
	var data struct{ Result []Series }
	err = json.Unmarshal(a.Data, &data)
	return data.Result, err
}
