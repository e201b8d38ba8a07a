package attack_test

import (
	"bytes"
	"io"
	"net/http"
	"sync"
	"testing"

	"mete.dev/mete/internal/testkit/attack"
)

// TestHeldBodies sends bodies almost to their end, on many streams, by the bearers of one cluster's
// tokens: the server stays within its memory, and a writer of another cluster is served.
func TestHeldBodies(t *testing.T) {
	attackStage(t)
	s := &scene{Server: attack.StartServer(t, programs, attack.Config{Memory: mostMemory, Env: []string{"GOMEMLIMIT=384MiB"}}, "--query-memory", "128MiB")}
	viewer, writer, other := s.Token(t, "viewer", "--cluster", "lab"), s.Token(t, "writer", "--cluster", "lab"), s.Token(t, "writer", "--cluster", "prod")
	var clients [6]*http.Client // each has one connection, of a hundred streams
	for i := range clients {
		clients[i] = attack.NewClient(t)
	}
	for path, c := range map[string]struct {
		token, contentType string
		bytes              int
	}{
		"/api/v1/write": {writer, "application/x-protobuf", 8<<20 - 1}, "/api/v1/read": {viewer, "application/x-protobuf", 1<<20 - 1}, "/api/v1/query": {viewer, "application/x-www-form-urlencoded", 1<<20 - 1},
	} {
		var wait, sent sync.WaitGroup
		end := make(chan struct{})
		codes, most := make([]int, 600), bytes.Repeat([]byte("a"), c.bytes)
		for i := range codes {
			sent.Add(1)
			once := sync.OnceFunc(sent.Done)
			wait.Go(func() {
				body := io.MultiReader(bytes.NewReader(most), &held{once, end})
				codes[i] = attack.Do(t, clients[i%len(clients)], http.MethodPost, s.URL+path, body, append(attack.Bearer(c.token), "Content-Type", c.contentType, "Content-Encoding", map[bool]string{true: "", false: "snappy"}[path == "/api/v1/query"])...).Status
				once()
			})
		}
		sent.Wait()
		if a := s.Write(t, other, 1e9, attack.Sample{Labels: []string{"__name__", "app_other"}, Values: []float64{1}}); a.Status/100 != 2 {
			t.Errorf("%s: another writer: %d %s", path, a.Status, a.Body)
		}
		t.Logf("%s: peak RSS %d MiB", path, s.PeakRSS()>>20)
		close(end)
		wait.Wait()
		count := map[int]int{}
		for _, code := range codes {
			count[code]++
		}
		t.Logf("%s: %v", path, count)
		s.Check(t, mostMemory)
	}
}

// held is the end of a body, which comes when end is closed. It calls reached when all before it was sent.
type held struct {
	reached func()
	end     chan struct{}
}

func (h *held) Read([]byte) (int, error) {
	h.reached()
	<-h.end
	return 0, io.EOF
}
