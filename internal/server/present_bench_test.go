package server_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit/fleet"
)

// BenchmarkPresent asks a server with 1,000 machines of 50 workloads each what they do. It
// reports the CPU time of the process too, which depends less on what else the machine does.
func BenchmarkPresent(b *testing.B) {
	f := fleet.Open(b, fleet.Config{Nodes: 1000, Each: 50, Windows: 1, Window: 10e9, Tame: true})
	h := f.Server.Handler()
	for _, target := range []string{"/v1/summary", "/v1/summary?nodes=1&top=20", "/v1/rates?limit=1000"} {
		b.Run(target, func(b *testing.B) {
			b.ReportAllocs()
			before := cpuTime(b)
			for b.Loop() {
				r := httptest.NewRequest(http.MethodGet, "https://server"+target, nil)
				r.Header.Set("Authorization", "Bearer "+f.Viewer)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// cpuTime is how long this process has run on CPUs, in ns.
func cpuTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
