package attack_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/testkit/attack"
	pb "mete.dev/mete/proto"
)

// below returns an enrolled server below, of the cluster lab.
func (s *scene) below(t *testing.T, ledger string) *attack.Node {
	t.Helper()
	n, err := s.EnrollServer(t, s.Token(t, "upstream", "--cluster", "lab"), ledger)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// pageOf returns a page with a node, and a workload of it without rows.
func pageOf(id, cluster string) *replica.Page {
	now := time.Now().UTC()
	return &replica.Page{Within: true, Workloads: []replica.Workload{{Short: 7}},
		Nodes: []replica.Node{{Node: registry.Node{ID: id, Cluster: cluster, Name: "name-of-" + id, MachineID: "machine-of-" + id, At: now}, CPUs: 1, Through: now}}}
}

// used returns a use of CPU time.
func used(cpu int64) (u usage.Usage) {
	u.Put(usage.CPU, cpu, usage.Measured)
	u.Covered = time.Minute
	return u
}

// minutesAgo returns a minute since 1970.
func minutesAgo(n int64) int64 { return time.Now().Unix()/60 - n }

// belowAttempts are those of an enrolled server below.
var belowAttempts = []attempt{
	{"server below", "nodes of others", func(t *testing.T, s *scene) {
		other, err := s.EnrollServer(t, s.Token(t, "upstream", "--cluster", "prod"), "other-ledger")
		if err != nil {
			t.Fatal(err)
		}
		theirs := pageOf("01J0000000000000000000PROD", "prod")
		theirs.Rows = []replica.Row{{Minute: minutesAgo(10), Usage: used(int64(time.Minute))}}
		if a := other.SendStates(t, theirs); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		before := s.figuresOf(t, theirs.Nodes[0].Name)
		below := s.below(t, "own-ledger")
		for _, id := range []string{s.victim.ID, theirs.Nodes[0].ID} {
			p := pageOf(id, "prod")
			p.Rows = []replica.Row{{Minute: minutesAgo(10), Usage: used(int64(time.Hour))}}
			p.Nodes[0].Revoked = time.Now()
			if a := below.SendStates(t, p); a.Status != http.StatusOK {
				t.Errorf("%s: %d %s", id, a.Status, a.Body)
			}
		}
		if after := s.figuresOf(t, theirs.Nodes[0].Name); after != before {
			t.Errorf("a node of another server had\n%sand has\n%s", before, after)
		}
		// A node that it does not have yet counts for its own cluster, whatever it says.
		if a := below.SendStates(t, pageOf("01J0000000000000000000FAKE", "prod")); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		a := s.Do(t, "GET", "/v1/nodes?cluster=prod", nil, attack.Bearer(s.admin)...)
		if strings.Contains(a.Body, "FAKE") || strings.Contains(a.Body, "name-of-"+s.victim.ID) || !strings.Contains(a.Body, s.victim.ID) {
			t.Errorf("nodes of prod: %s", a.Body)
		}
		if a := attack.Do(t, below.Client, "POST", s.URL+"/v1/batches", strings.NewReader("x"), "Content-Type", wire.MediaType); a.Status != 403 {
			t.Errorf("a server sends a batch: %d %s", a.Status, a.Body)
		}
	}},
	{"server below", "the id of another ledger", func(t *testing.T, s *scene) {
		prod, err := s.EnrollServer(t, s.Token(t, "upstream", "--cluster", "prod"), "ledger-of-prod")
		if err != nil {
			t.Fatal(err)
		}
		if thief := s.below(t, "ledger-of-prod"); thief.ID == prod.ID {
			t.Error("a server of lab is a source of prod")
		}
		if thief := s.below(t, s.victim.ID); thief.ID == s.victim.ID {
			t.Error("a server is a node")
		}
	}},
	{"server below", "hosts and guests of others", func(t *testing.T, s *scene) {
		below := s.below(t, "nesting-ledger")
		const guest, host = "01J000000000000000000GUEST", "01J0000000000000000000HOST"
		today := minutesAgo(10) / 1440 * 1440
		// Its own node is within the victim, and the victim within its own node.
		p := pageOf(guest, "lab")
		p.Nodes[0].Host = replica.Host{Node: s.victim.ID, Workload: 7, Since: time.Now().Add(-time.Hour), Seen: time.Now()}
		p.Nodes = append(p.Nodes, pageOf(s.victim.ID, "prod").Nodes[0], pageOf(host, "lab").Nodes[0])
		p.Nodes[1].Host = replica.Host{Node: host, Workload: 7, Since: time.Now().Add(-time.Hour), Seen: time.Now()}
		p.Workloads = append(p.Workloads, replica.Workload{Node: 1, Short: 7}, replica.Workload{Node: 2, Short: 7})
		p.Nestings = []replica.Nesting{{Node: 0, Host: 1, Workload: 1, Minute: today}, {Node: 1, Host: 2, Workload: 2, Minute: today}}
		p.Rows = []replica.Row{{Minute: minutesAgo(10), Within: 2, Usage: used(1e9)}, {Minute: minutesAgo(10), Workload: 1, Within: 3, Usage: used(1e9)}, {Minute: minutesAgo(10), Workload: 2, Usage: used(1e9)}}
		if a := below.SendStates(t, p); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		// As a source of an earlier version says it: all rows of the day.
		p.Within = false
		for i := range p.Rows {
			p.Rows[i].Within = 0
		}
		if a := below.SendStates(t, p); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		a := s.Do(t, "GET", "/v1/nodes?cluster=prod", nil, attack.Bearer(s.admin)...)
		if strings.Contains(a.Body, host) || strings.Contains(a.Body, guest) {
			t.Errorf("nodes of prod: %s", a.Body)
		}
	}},
	{"server below", "absurd amounts", func(t *testing.T, s *scene) {
		below := s.below(t, "absurd-ledger")
		p := pageOf("01J0000000000000000000HUGE", "lab")
		hour := minutesAgo(180) / 60 * 60
		for i := range int64(60) {
			p.Rows = append(p.Rows, replica.Row{Minute: hour + i, Usage: used(math.MaxInt64)})
			r := replica.NodeRow{NodeMinute: batch.NodeMinute{Minute: hour + i, CPUs: math.MaxInt32, Violations: math.MaxInt32, Lost: math.MaxInt32, Covered: time.Minute, Total: used(math.MaxInt64)}}
			r.Total.Covered = 0
			r.Whole[0], r.Skew[0] = math.MaxInt64, math.MinInt64+1
			p.NodeRows = append(p.NodeRows, r)
		}
		p.Rows = append(p.Rows, replica.Row{Resolution: replica.Day, Minute: hour/1440*1440 - 1440, Usage: used(math.MaxInt64)})
		if a := below.SendStates(t, p); a.Status == 0 || a.Status == 500 {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		for _, path := range []string{"/v1/usage?by=cluster", "/v1/usage?by=node&idle=used", "/v1/usage?by=job&format=csv", "/v1/nodes", "/v1/summary", "/v1/workloads", "/v1/health"} {
			if a := s.Do(t, "GET", path, nil, attack.Bearer(s.admin)...); a.Status != http.StatusOK || strings.Contains(a.Body, "seconds\":-") {
				t.Errorf("%s: %d %.300s", path, a.Status, a.Body)
			}
		}
		negative := pageOf("01J0000000000000000000HUGE", "lab")
		negative.Rows = []replica.Row{{Minute: hour, Usage: used(-1)}}
		if a := below.SendStates(t, negative); a.Status != http.StatusBadRequest {
			t.Errorf("negative amounts: %d %s", a.Status, a.Body)
		}
	}},
	{"server below", "rows of years", func(t *testing.T, s *scene) {
		below := s.below(t, "time-ledger")
		s.awaitFloor(t)
		day := minutesAgo(0) / 1440
		for _, c := range []struct {
			what        string
			first, days int64
			level       replica.Resolution
			want        []int
		}{
			{"minutes of the future", day + 2, 50_000, replica.Minute, []int{503}},
			{"hours of the future", day + 2, 50_000, replica.Hour, []int{503}},
			{"days of the future", 1 << 20, 50_000, replica.Day, []int{503}},
			{"minutes since 1970", 0, 15_000, replica.Minute, []int{409}},
			{"days since 1970", 0, 1_000, replica.Day, []int{200}},
		} {
			p := pageOf("01J0000000000000000000TIME", "lab")
			for i := range c.days {
				p.Rows = append(p.Rows, replica.Row{Resolution: c.level, Minute: (c.first + i) * 1440, Usage: used(1e9)})
			}
			a := below.SendStates(t, p)
			t.Logf("%s: %d %.200s after %v", c.what, a.Status, a.Body, a.Took)
			if !is(a.Status, c.want...) {
				t.Errorf("%s: %d %s, want %v", c.what, a.Status, a.Body, c.want)
			}
		}
	}},
	{"server below", "long names", func(t *testing.T, s *scene) {
		below := s.below(t, "name-ledger")
		long := strings.Repeat("x", 1<<20)
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		for what, spoil := range map[string]func(p *pb.States){ // wire.EncodeStates would cut them
			"position":  func(p *pb.States) { p.To = long },
			"node":      func(p *pb.States) { p.Nodes[0].Name = long },
			"node id":   func(p *pb.States) { p.Nodes[0].Id = long },
			"cluster":   func(p *pb.States) { p.Nodes[0].Cluster = "lab." + long },
			"pool":      func(p *pb.States) { p.Nodes[0].Pool = long },
			"host":      func(p *pb.States) { p.Nodes[0].Host = &pb.StateHost{Node: long} },
			"namespace": func(p *pb.States) { p.Workloads = []*pb.StateWorkload{{Changed: true, Namespace: long}} },
			"gap":       func(p *pb.States) { p.Gaps = []*pb.StateGap{{Gap: &pb.Gap{Detail: long}}} },
			"shift":     func(p *pb.States) { p.Shifts = []*pb.StateShift{{Boot: long}} },
		} {
			p := &pb.States{Version: 1, Within: true, Nodes: []*pb.StateNode{{Id: "01J0000000000000000000NAME", Cluster: "lab"}}}
			spoil(p)
			raw, err := proto.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			if a := below.PostStates(t, enc.EncodeAll(raw, nil)); a.Status != http.StatusBadRequest || len(a.Body) > 8<<10 {
				t.Errorf("%s of 1 MiB: %d %.300s", what, a.Status, a.Body)
			}
		}
		// A workload with such a name is one with a shorter one.
		p := pageOf("01J0000000000000000000NAME", "lab")
		id := workload.NewID(p.Nodes[0].ID, workload.Job, "k")
		p.Workloads[0].Short, _ = workload.ShortIDOf(id)
		p.Workloads[0].Name = &batch.Name{ID: id, Kind: workload.Job, Key: "k", Name: strings.Repeat("y", 4000), Labels: map[string]string{"a": strings.Repeat("z", 4000), "b": strings.Repeat("z", 4000), "c": strings.Repeat("z", 4000)}}
		p.Rows = []replica.Row{{Minute: minutesAgo(5), Usage: used(1e9)}}
		if a := below.SendStates(t, p); a.Status != http.StatusOK {
			t.Errorf("%d %s", a.Status, a.Body)
		}
		if a := s.Do(t, "GET", "/v1/workloads?where=node%3D01J0000000000000000000NAME", nil, attack.Bearer(s.viewer)...); a.Status != http.StatusOK || len(a.Body) > 100<<10 {
			t.Errorf("workloads: %d, %d bytes", a.Status, len(a.Body))
		}
	}},
	{"server below", "pages that grow or do not end", func(t *testing.T, s *scene) {
		below := s.below(t, "page-ledger")
		if a := below.PostStates(t, bomb(t)); a.Status != 400 {
			t.Errorf("512 MiB of zeros: %d %s", a.Status, a.Body)
		}
		enc, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range [][]byte{bytes.Repeat([]byte{0x22, 0}, 4<<20), bytes.Repeat([]byte{0x2a, 0}, 4<<20), bytes.Repeat([]byte{0x3a, 0}, 1<<20), []byte("x")} {
			if a := below.PostStates(t, enc.EncodeAll(raw, nil)); a.Status/100 != 4 {
				t.Errorf("a page of %d bytes: %d %s", len(raw), a.Status, a.Body)
			}
		}
		if a := attack.Do(t, below.Client, "POST", s.URL+"/v1/states", endless{}, "Content-Type", wire.MediaTypeStates); a.Status != 413 && a.Status != 0 {
			t.Errorf("an endless page: %d %s", a.Status, a.Body)
		}
		// Pages that skip, repeat or take back others.
		p := pageOf("01J0000000000000000000PAGE", "lab")
		if a := below.SendStates(t, p); a.Status != http.StatusOK {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
		for _, from := range []replica.Mark{{}, {Sequence: 5, Position: "1"}, {Sequence: 1, Position: "x"}, {Sequence: math.MaxUint64, Position: "1"}} {
			p.From = from
			sent, err := wire.EncodeStates(nil, p)
			if err != nil {
				t.Fatal(err)
			}
			if a := below.PostStates(t, sent); a.Status != http.StatusConflict {
				t.Errorf("a page from %v: %d %s", from, a.Status, a.Body)
			}
		}
	}},
}

// endless is a body without an end.
type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestSlowPages has two servers below whose pages do not come: another one replicates meanwhile.
func TestSlowPages(t *testing.T) {
	attackStage(t)
	s := newScene(t)
	ended := make(chan string, 2)
	for i := range 2 {
		n := s.below(t, fmt.Sprint("slow-", i))
		body, end := io.Pipe()
		t.Cleanup(func() { _ = end.Close() })
		go func() {
			a := attack.Do(t, n.Client, "POST", s.URL+"/v1/states", body, "Content-Type", wire.MediaTypeStates)
			ended <- fmt.Sprint(a.Status, a.Body)
		}()
		if _, err := end.Write([]byte("x")); err != nil { // the server reads the body
			t.Fatal(err)
		}
	}
	if a := s.below(t, "other").SendStates(t, pageOf("01J000000000000000000OTHER", "lab")); a.Status != http.StatusOK {
		t.Errorf("beside slow pages: %d %s", a.Status, a.Body)
	}
	select {
	case a := <-ended:
		t.Errorf("another page was taken only after a slow one had ended: %s", a)
	default:
	}
	for range 2 {
		t.Log(<-ended)
	}
	s.Check(t, mostMemory)
}
