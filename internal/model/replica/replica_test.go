package replica_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// page returns a page with "secret" in every field that can hold a name.
func page() *replica.Page {
	name := batch.Name{
		ID: workload.NewID("n", workload.Job, "k"), Kind: workload.Job, Key: "secret", Name: "secret name", Path: "/secret",
		Job: "secret job", User: "secret user", Project: "secret project", Labels: map[string]string{"secret": "secret"},
	}
	short, _ := workload.ShortIDOf(name.ID)
	idle := batch.Name{ID: workload.NewID("n", workload.Idle, ""), Kind: workload.Idle, Name: "idle"}
	idleShort, _ := workload.ShortIDOf(idle.ID)
	p := &replica.Page{
		Nodes: []replica.Node{{Node: registry.Node{ID: "n", Cluster: "secret", Name: "secret", MachineID: "secret", Boot: "secret"}, Pool: "secret"}},
		Workloads: []replica.Workload{
			{Short: short, Name: &name, Namespace: "secret", Pod: "secret", Container: "secret", Run: workload.Run{ID: workload.NewRunID("c", "n", "u"), Name: "secret"}},
			{Short: idleShort, Name: &idle}, {Short: 5, Name: &batch.Name{}}, {Short: 6},
		},
		Rows:     []replica.Row{{Resolution: replica.Hour, Minute: 120}},
		NodeRows: []replica.NodeRow{{Resolution: replica.Minute, NodeMinute: batch.NodeMinute{Minute: 121}}},
		Gaps:     []replica.Gap{{Gap: usage.Gap{Detail: "secret"}}},
		Shifts:   []replica.Shift{{Shift: batch.Shift{Boot: "secret", At: time.Unix(1, 0)}}},
		Nestings: []replica.Nesting{{Host: -1, Workload: 3, Minute: 1440}},
		Connections: []replica.Connections{
			{Minute: 120, Workload: 3, Sketch: sketch("203.0.113.5", "203.0.113.6", "203.0.113.7", "203.0.113.8", "203.0.113.9")}, {Minute: 180, Workload: 3, Sketch: sketch("203.0.113.5")},
		},
	}
	p.Rows[0].Usage.Put(usage.CPU, 1, usage.Measured)
	return p
}

// sketch returns connections with peers, the first of which has the most traffic.
func sketch(peers ...string) *connection.Sketch {
	s := &connection.Sketch{Missed: 7}
	for i, p := range peers {
		s.Add(connection.Edge{Peer: netip.MustParseAddr(p), Port: 443, Protocol: 6, Class: 2}, connection.Traffic{RxBytes: int64(100 - i)})
	}
	return s
}

// TestMaskPeers checks that peers have the same pseudonym everywhere, in the order of edges, and that all else of them stays.
func TestMaskPeers(t *testing.T) {
	p, plain, other := page(), page(), page()
	shared := p.Connections[0].Sketch
	p.Mask([]byte("key"))
	other.Mask([]byte("another"))
	if diff := cmp.Diff(shared, plain.Connections[0].Sketch, addresses); diff != "" {
		t.Errorf("someone else's connections have changed:\n%s", diff)
	}
	largest := func(p *replica.Page, i int) connection.Entry {
		return slices.MaxFunc(p.Connections[i].Sketch.Entries, func(a, b connection.Entry) int { return int(a.RxBytes - b.RxBytes) })
	}
	first, second, elsewhere := largest(p, 0), largest(p, 1), largest(other, 0)
	if first != second || first.Peer == elsewhere.Peer || !netip.MustParsePrefix("2001:db8::/32").Contains(first.Peer) {
		t.Errorf("a peer is %v and %v, with another key %v", first, second, elsewhere)
	}
	want := largest(plain, 0)
	if want.Peer = first.Peer; first != want || p.Connections[0].Sketch.Missed != 7 {
		t.Errorf("masked: %+v, want %+v", first, want)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

var addresses = cmpopts.EquateComparable(netip.Addr{})

func TestMask(t *testing.T) {
	p, q, other, plain := page(), page(), page(), page()
	name := plain.Workloads[0].Name
	p.Mask([]byte("key"))
	q.Mask([]byte("key"))
	other.Mask([]byte("another"))
	text := fmt.Sprintf("%+v %+v %+v %+v", p, p.Workloads[0].Name, p.Workloads[1].Name, p.Connections[0].Sketch)
	if strings.Contains(text, "secret") || !strings.Contains(text, "idle") || strings.Count(text, "p-") != 14 {
		t.Errorf("masked: %s", text)
	}
	if strings.Contains(text, "203.0.113.") {
		t.Errorf("an address stays: %s", text)
	}
	if diff := cmp.Diff(p, q, addresses); diff != "" {
		t.Errorf("the same is masked otherwise:\n%s", diff)
	}
	if p.Nodes[0].Name == other.Nodes[0].Name || p.Nodes[0].Name == p.Nodes[0].Cluster {
		t.Errorf("two keys, or two kinds, give the same pseudonym %q", p.Nodes[0].Name)
	}
	if diff := cmp.Diff(p.Rows, plain.Rows); diff != "" || name.Job != "secret job" {
		t.Errorf("rows, or someone else's name, have changed:\n%s", diff)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	if err := page().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*replica.Page){
		"no id":                func(p *replica.Page) { p.Nodes[0].ID = "" },
		"no such node":         func(p *replica.Page) { p.Workloads[0].Node = 1 },
		"version before 1970":  func(p *replica.Page) { p.Workloads[0].From = -15 },
		"version too late":     func(p *replica.Page) { p.Workloads[0].From = 1 << 31 },
		"part of a quarter":    func(p *replica.Page) { p.Workloads[0].From = 20 },
		"next in a quarter":    func(p *replica.Page) { p.Workloads[0].Next = 20 },
		"next is not later":    func(p *replica.Page) { p.Workloads[0].From, p.Workloads[0].Next = 15, 15 },
		"next before 1970":     func(p *replica.Page) { p.Workloads[0].Next = -15 },
		"next too late":        func(p *replica.Page) { p.Workloads[0].Next = 1<<31 + 8 },
		"another short":        func(p *replica.Page) { p.Workloads[0].Short++ },
		"no such workload":     func(p *replica.Page) { p.Rows[0].Workload = 4 },
		"half an hour":         func(p *replica.Page) { p.Rows[0].Minute = 90 },
		"no level":             func(p *replica.Page) { p.Rows[0].Resolution = 3 },
		"before 1970":          func(p *replica.Page) { p.Rows[0].Minute = -60 },
		"less than nothing":    func(p *replica.Page) { p.Rows[0].Usage.Amount[usage.CPU] = -1 },
		"less of a node":       func(p *replica.Page) { p.NodeRows[0].Whole[1] = -1 },
		"no node of a row":     func(p *replica.Page) { p.NodeRows[0].Node = -1 },
		"no node of a gap":     func(p *replica.Page) { p.Gaps[0].Node = 1 },
		"no node of a nesting": func(p *replica.Page) { p.Nestings[0].Node = -1 },
		"no host of it":        func(p *replica.Page) { p.Nestings[0].Host = 1 },
		"no workload of it":    func(p *replica.Page) { p.Nestings[0].Workload = 4 },
		"no day of it":         func(p *replica.Page) { p.Nestings[0].Minute = 60 },
		"half of their hour":   func(p *replica.Page) { p.Connections[0].Minute = 90 },
		"no workload of them":  func(p *replica.Page) { p.Connections[0].Workload = 4 },
		"nor one before":       func(p *replica.Page) { p.Connections[0].Workload = -1 },
		"less missed than 0":   func(p *replica.Page) { p.Connections[0].Sketch.Missed = -1 },
		"nor of a shift":       func(p *replica.Page) { p.Shifts[0].Node = 1 },
	} {
		p := page()
		change(p)
		if err := p.Check(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCheckLimits checks the first and last values that each number of a page may have.
func TestCheckLimits(t *testing.T) {
	for name, c := range map[string]struct {
		set       func(*replica.Page, int64)
		good, bad []int64
	}{
		"CPUs of a node":        {func(p *replica.Page, v int64) { p.Nodes[0].CPUs = int(v) }, []int64{0, 1}, []int64{-1}},
		"node of a workload":    {func(p *replica.Page, v int64) { p.Workloads[0].Node = int(v) }, []int64{0, 1}, []int64{-1, 2}},
		"version":               {func(p *replica.Page, v int64) { p.Workloads[0].From = v }, []int64{0, 15, 1<<31 - 8}, []int64{-15, 20, 1<<31 + 7}},
		"next version":          {func(p *replica.Page, v int64) { p.Workloads[0].Next = v }, []int64{0, 15, 1<<31 - 8}, []int64{-15, 20, 1<<31 + 7}},
		"resolution":            {func(p *replica.Page, v int64) { p.Rows[0].Resolution, p.Rows[0].Minute = replica.Resolution(v), 1440 }, []int64{0, 1, 2}, []int64{3}},
		"hour":                  {func(p *replica.Page, v int64) { p.Rows[0].Minute = v }, []int64{0, 60, 1<<31 - 8}, []int64{-60, 90, 1<<31 + 52}},
		"workload of a row":     {func(p *replica.Page, v int64) { p.Rows[0].Workload = int(v) }, []int64{0, 3}, []int64{-1, 4}},
		"row within":            {func(p *replica.Page, v int64) { p.Rows[0].Within = int(v) }, []int64{0, 1, 2}, []int64{-1, 3}},
		"time of a row":         {func(p *replica.Page, v int64) { p.Rows[0].Usage.Covered = time.Duration(v) }, []int64{0, 1}, []int64{-1}},
		"use of a row":          {func(p *replica.Page, v int64) { p.Rows[0].Usage.Amount[usage.CPU] = v }, []int64{0, 1}, []int64{-1}},
		"minute":                {func(p *replica.Page, v int64) { p.NodeRows[0].Minute = v }, []int64{0, 1, 1<<31 - 1}, []int64{-1, 1 << 31}},
		"node of a row":         {func(p *replica.Page, v int64) { p.NodeRows[0].Node = int(v) }, []int64{0, 1}, []int64{-1, 2}},
		"row of a node within":  {func(p *replica.Page, v int64) { p.NodeRows[0].Within = int(v) }, []int64{0, 1, 2}, []int64{-1, 3}},
		"time of a node":        {func(p *replica.Page, v int64) { p.NodeRows[0].Covered = time.Duration(v) }, []int64{0, 1}, []int64{-1}},
		"use of a node":         {func(p *replica.Page, v int64) { p.NodeRows[0].Total.Put(usage.CPU, v, usage.Measured) }, []int64{0, 1}, []int64{-1}},
		"CPUs":                  {func(p *replica.Page, v int64) { p.NodeRows[0].CPUs = int(v) }, []int64{0, 1}, []int64{-1}},
		"violations":            {func(p *replica.Page, v int64) { p.NodeRows[0].Violations = v }, []int64{0, 1}, []int64{-1}},
		"lost":                  {func(p *replica.Page, v int64) { p.NodeRows[0].Lost = v }, []int64{0, 1}, []int64{-1}},
		"whole":                 {func(p *replica.Page, v int64) { p.NodeRows[0].Whole[0] = v }, []int64{0, 1}, []int64{-1}},
		"node of a gap":         {func(p *replica.Page, v int64) { p.Gaps[0].Node = int(v) }, []int64{0, 1}, []int64{-1, 2}},
		"node of a shift":       {func(p *replica.Page, v int64) { p.Shifts[0].Node = int(v) }, []int64{0, 1}, []int64{-1, 2}},
		"node of a nesting":     {func(p *replica.Page, v int64) { p.Nestings[0].Node = int(v) }, []int64{0, 1}, []int64{-1, 2}},
		"host of a nesting":     {func(p *replica.Page, v int64) { p.Nestings[0].Host = int(v) }, []int64{-1, 0, 1}, []int64{-2, 2}},
		"workload of a nesting": {func(p *replica.Page, v int64) { p.Nestings[0].Workload = int(v) }, []int64{-1, 0, 3}, []int64{-2, 4}},
		"day":                   {func(p *replica.Page, v int64) { p.Nestings[0].Minute = v }, []int64{0, 1440}, []int64{-1440, 60}},
	} {
		check := func(v int64) error {
			p := page()
			p.Nodes = append(p.Nodes, replica.Node{Node: registry.Node{ID: "other"}})
			c.set(p, v)
			return p.Check()
		}
		for _, v := range c.good {
			if err := check(v); err != nil {
				t.Errorf("%s %d: %v", name, v, err)
			}
		}
		for _, v := range c.bad {
			if err := check(v); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("%s %d: %v", name, v, err)
			}
		}
	}
}

// TestSays checks what a server of an earlier version must not store, as it would store something else.
func TestSays(t *testing.T) {
	for name, c := range map[string]struct {
		page                    replica.Page
		within, versions, empty bool
	}{
		"nothing":                   {replica.Page{Within: true}, false, false, true},
		"rows of no other node":     {replica.Page{Within: true, Rows: make([]replica.Row, 1), NodeRows: make([]replica.NodeRow, 1)}, false, false, false},
		"a row within":              {replica.Page{Within: true, Rows: []replica.Row{{}, {Within: 1}}}, true, false, false},
		"a row of a node within":    {replica.Page{Within: true, NodeRows: []replica.NodeRow{{}, {Within: 1}}}, true, false, false},
		"a nesting":                 {replica.Page{Within: true, Nestings: make([]replica.Nesting, 1)}, true, false, false},
		"a nesting of all rows":     {replica.Page{Nestings: make([]replica.Nesting, 1)}, false, false, false},
		"a first version":           {replica.Page{Workloads: make([]replica.Workload, 1)}, false, false, false},
		"a version":                 {replica.Page{Workloads: []replica.Workload{{}, {From: 15}}}, false, true, false},
		"a version with a next one": {replica.Page{Workloads: []replica.Workload{{}, {Next: 15}}}, false, true, false},
		"a node":                    {replica.Page{Nodes: make([]replica.Node, 1)}, false, false, false},
		"a gap":                     {replica.Page{Gaps: make([]replica.Gap, 1)}, false, false, false},
		"a shift":                   {replica.Page{Shifts: make([]replica.Shift, 1)}, false, false, false},
	} {
		if p := &c.page; p.SaysWithin() != c.within || p.SaysVersions() != c.versions || p.Empty() != c.empty {
			t.Errorf("%s: says within %t, versions %t, is empty %t; want %t, %t, %t", name, p.SaysWithin(), p.SaysVersions(), p.Empty(), c.within, c.versions, c.empty)
		}
	}
}

// TestMinutes checks the lengths of spans.
func TestMinutes(t *testing.T) {
	for v, want := range map[replica.Resolution]int64{replica.Minute: 1, replica.Hour: 60, replica.Day: 1440} {
		if got := v.Minutes(); got != want {
			t.Errorf("resolution %d has %d minutes, want %d", v, got, want)
		}
	}
}

// TestPseudonym checks that pseudonyms stay: names would be others after an upgrade.
func TestPseudonym(t *testing.T) {
	if got := replica.Pseudonym([]byte("key"), "node", "a"); got != "p-fplbeyynhfz2ytph" {
		t.Errorf("the pseudonym is %q", got)
	}
	if got := replica.Pseudonym([]byte("key"), "node", ""); got != "" {
		t.Errorf("the pseudonym of no name is %q", got)
	}
}

func TestCluster(t *testing.T) {
	for _, c := range [][3]string{{"eu", "default", "eu"}, {"eu", "eu", "eu"}, {"eu", "eu.west", "eu.west"}, {"eu", "europe", "eu"}, {"eu", "", "eu"}, {"eu", "us.eu", "eu"}} {
		if got := (replica.Source{Cluster: c[0]}).ResolveCluster(c[1]); got != c[2] {
			t.Errorf("%q in %q is %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
