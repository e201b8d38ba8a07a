package server_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/server"
)

// randomUsage is the use of some of the resources that agents measure, of any quality. Classes of traffic are parts of others, and most workloads have no disk space.
func randomUsage(rng *rand.Rand) (u usage.Usage) {
	for r := range (usage.Metered &^ usage.Apart).All() {
		if rng.IntN(4) == 0 {
			continue
		}
		amount := rng.Int64N(1 << (10 + rng.IntN(28)))
		if rng.IntN(6) == 0 {
			amount = 0
		}
		u.Put(r, amount, usage.Measured+usage.Quality(rng.IntN(3)))
	}
	u.Covered = 9 * time.Second
	return u
}

// randomBatch is a window of a machine with n workloads, system and idle that ended now, and
// their names.
func randomBatch(t testing.TB, node string, n int, rng *rand.Rand) ([]byte, batch.Clock) {
	now := time.Now()
	const length = 9_876_543_210
	w := usage.Window{Boot: node, Start: 100e9, End: 100e9 + length, CPUs: 4 + n}
	w.Offset = now.UnixNano() - w.End
	var parents []workload.ID
	add := func(kind workload.Kind, key, name string, parent workload.ID) workload.ID {
		r := usage.Row{Workload: &usage.Identity{Workload: workload.Workload{ID: workload.NewID(node, kind, key), Kind: kind, Key: key, Name: name}}, Usage: randomUsage(rng)}
		r.ShortID, _ = workload.ShortIDOf(r.Workload.ID)
		w.Rows, parents = append(w.Rows, r), append(parents, parent)
		return r.Workload.ID
	}
	slice := add(workload.Slice, "/a.slice", "/a.slice", "")
	for i := range n {
		kind := []workload.Kind{workload.Service, workload.Container, workload.VM, workload.Path}[i%4]
		add(kind, fmt.Sprint(i), fmt.Sprint([]string{"web", "<b>&\"", "/a.slice/é", ""}[i%4], i), []workload.ID{slice, ""}[i%2])
	}
	add(workload.System, "", "system", "")
	add(workload.Idle, "", "idle", "")
	if n != 1 {
		w.Total = randomUsage(rng)
	}
	if n == 2 {
		w.Rows = nil // nothing but what its disks and interfaces did
	}
	b := batch.Batch{Stream: batch.Stream{1, node[len(node)-1]}, Number: 1, Windows: []usage.Window{wire.Prepare(w.Clone())}}
	for i := range w.Rows {
		name := wire.NameOf(&w.Rows[i])
		if name.Parent = parents[i]; i == 1 {
			name.Job = "build"
		}
		b.Names = append(b.Names, name)
	}
	sent, err := wire.Encode(nil, &b)
	if err != nil {
		t.Fatal(err)
	}
	return sent, batch.Clock{Boot: node, Boottime: w.End, Wall: now.UnixNano()}
}

var (
	anyTime  = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+Z"`)
	anyState = regexp.MustCompile(`"state":"(live|behind|silent)"|"states":\{[^}]*\}`)
)

// timeless returns an answer without the parts that depend on the time of the request: a node
// that is live falls behind while a slow machine runs the test.
func timeless(body string) string {
	return anyState.ReplaceAllString(anyTime.ReplaceAllString(body, `"TIME"`), `"state":"STATE"`)
}

// TestPresentGolden compares the answers about the present with a golden file, byte by byte.
func TestPresentGolden(t *testing.T) {
	b := open(t, t.TempDir(), func(c *server.Config) { c.Local = true })
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 6 {
		id := fmt.Sprintf("01J0000000000000000000000%d", i)
		if err := b.Ledger.PutNode(t.Context(), registry.Node{ID: id, MachineID: id, Cluster: []string{"lab", "east"}[i%2], Name: fmt.Sprint("box-", i), At: time.Now().UTC()}); err != nil {
			t.Fatal(err)
		}
		if i == 5 {
			continue // it sends nothing
		}
		sent, clock := randomBatch(t, id, []int{7, 1, 0, 2, 12}[i], rng)
		if r, err := b.Transport(id).Offer(t.Context(), clock, sent); err != nil || r.Verdict != batch.Accepted {
			t.Fatalf("offer: %+v, %v", r, err)
		}
	}
	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Viewer})
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, target := range []string{"/v1/rates", "/v1/rates?limit=2", "/v1/rates?limit=2&cursor=MDFKMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDE", "/v1/summary", "/v1/summary?nodes=1", "/v1/summary?top=3", "/v1/summary?nodes=1&top=100&node=box-4", "/v1/summary?node=box-5"} {
		w := answerOf(bearing(b, text), "GET", target)
		fmt.Fprintf(&got, "%s %d\n%s\n", target, w.Code, timeless(w.Body.String()))
	}
	for _, name := range []string{"0", "none"} {
		j := job("01J00000000000000000000000", name)
		j.Workload = workload.NewID(j.Node, workload.Service, name)
		w := answerOf(bearing(b, b.Authority.JobKey(j.Node).Sign(j)), "GET", "/v1/self")
		before, _, _ := strings.Cut(w.Body.String(), "\"usage\":")
		fmt.Fprintf(&got, "self %d\n%s\n", w.Code, timeless(before))
	}
	const path = "testdata/present.txt"
	if *server.Update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("the present is not told as before (-want +got):\n%s", d)
	}
}
