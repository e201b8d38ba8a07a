package agent

import (
	"flag"
	"net"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/collect/energy"
	"mete.dev/mete/internal/delivery/directives"
	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/guest/publish"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestMetrics compares all metrics: their names are an interface.
func TestMetrics(t *testing.T) {
	got := metrics(agent.Status{
		Windows: 12345678, Rows: 1 << 40, Jobs: 3, Failing: "no space", Unrecorded: "no space", Violations: 1, Missed: 2, Partial: "only a part",
		Sender: sender.Status{State: sender.Connected, Since: time.Unix(1, 0), Batches: 4, Bytes: 5_000_000_000, Retries: 6},
		GuestRelay: agent.GuestRelayStatus{
			Guests: []publish.Status{{Guest: "6f1c3f0e-7a52-4c1b-9d2e-0a1b2c3d4e5f", Name: "web", Published: 12, Streams: 1, Equal: 13, Differing: 14, Unknown: 15}},
			Host:   &energy.HostShare{Seen: true, From: "vsock", Guest: "0d9e1b7c-1111-4222-8333-444455556666", Epoch: "E", N: 1234567890123, Age: 250 * time.Millisecond},
		},
		Directives: []directives.SectionStatus{{Name: "network-classes", Epoch: 1, Left: 3 * time.Hour}, {Name: "network-node", Epoch: 2, Rejected: "it is bad"}},
		Spool:      spool.Stats{Bytes: 7 << 20, Waiting: 6 << 20, Limit: 512 << 20, Windows: 8, Dropped: 9, Corrupt: 10, Refused: 11, Notes: 12},
	})
	const golden = "testdata/metrics.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// TestStatusOtherSites checks that a page of another site gets no answer of the status listener.
func TestStatusOtherSites(t *testing.T) {
	h := status{func() string { return "" }, func() []string { return nil }, func() string { return "" }, newTestMetrics(Config{})}.handler(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9798})
	for site, want := range map[string]int{"": 200, "none": 200, "same-origin": 200, "cross-site": 403, "same-site": 403} {
		r := httptest.NewRequest("GET", "http://127.0.0.1:9798/metrics", nil)
		if site != "" {
			r.Header.Set("Sec-Fetch-Site", site)
		}
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("Sec-Fetch-Site %q: %d, want %d", site, w.Code, want)
		}
	}
}

// TestStatusOtherHosts checks that a name of another site that leads to the loopback is not served.
func TestStatusOtherHosts(t *testing.T) {
	loopback, open := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9798}, &net.TCPAddr{IP: net.IPv4zero, Port: 9798}
	for _, c := range []struct {
		at   net.Addr
		host string
		want int
	}{
		{loopback, "127.0.0.1:9798", 200},
		{loopback, "localhost:9798", 200},
		{&net.TCPAddr{IP: net.IPv6loopback, Port: 1}, "[::1]:1", 200},
		{loopback, "evil.example:9798", 421},
		{loopback, "192.0.2.1:9798", 421},
		{loopback, "", 421},
		{open, "192.0.2.1:9798", 200},
		{open, "node.example:9798", 200},
	} {
		h := status{func() string { return "" }, func() []string { return nil }, func() string { return "" }, newTestMetrics(Config{})}.handler(c.at)
		for _, path := range []string{"/metrics", "/healthz"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = c.host
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != c.want {
				t.Errorf("%s at %v for %q: %d, want %d", path, c.at, c.host, w.Code, c.want)
			}
		}
	}
}

// TestHealthNotes checks that /healthz names what an agent in a container does not see, and the directives that do not hold.
func TestHealthNotes(t *testing.T) {
	for _, c := range []struct {
		partial  string
		sections []directives.SectionStatus
		want     string
	}{
		{"", nil, "ok\n"},
		{"only a part", nil, "ok\nonly a part\n"},
		{"", []directives.SectionStatus{{Name: "a", Epoch: 1, Left: time.Hour}, {Name: "b", Epoch: 2}, {Name: "c", Left: time.Hour, Rejected: "it is bad"}},
			"ok\ndirective b expired: the server did not confirm it\ndirective c is not followed: it is bad\n"},
	} {
		s := status{func() string { return "" }, func() []string { return notesOf(c.partial, c.sections) }, func() string { return "" }, newTestMetrics(Config{})}
		w := httptest.NewRecorder()
		s.handler(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9798}).ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:9798/healthz", nil))
		if w.Code != 200 || w.Body.String() != c.want {
			t.Errorf("%d %q, want %q", w.Code, w.Body, c.want)
		}
	}
}
