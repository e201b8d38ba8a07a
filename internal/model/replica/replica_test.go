package replica_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/model/batch"
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
	}
	p.Rows[0].Usage.Put(usage.CPU, 1, usage.Measured)
	return p
}

func TestMask(t *testing.T) {
	p, q, other, plain := page(), page(), page(), page()
	name := plain.Workloads[0].Name
	p.Mask([]byte("key"))
	q.Mask([]byte("key"))
	other.Mask([]byte("another"))
	text := fmt.Sprintf("%+v %+v %+v", p, p.Workloads[0].Name, p.Workloads[1].Name)
	if strings.Contains(text, "secret") || !strings.Contains(text, "idle") || strings.Count(text, "p-") != 14 {
		t.Errorf("masked: %s", text)
	}
	if diff := cmp.Diff(p, q); diff != "" {
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
		"nor of a shift":       func(p *replica.Page) { p.Shifts[0].Node = 1 },
	} {
		p := page()
		change(p)
		if err := p.Check(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCluster(t *testing.T) {
	for _, c := range [][3]string{{"eu", "default", "eu"}, {"eu", "eu", "eu"}, {"eu", "eu.west", "eu.west"}, {"eu", "europe", "eu"}, {"eu", "", "eu"}, {"eu", "us.eu", "eu"}} {
		if got := (replica.Source{Cluster: c[0]}).ResolveCluster(c[1]); got != c[2] {
			t.Errorf("%q in %q is %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
