package states_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/batch"
	"mete.dev/mete/internal/entry"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/states"
	"mete.dev/mete/internal/workload"
)

// page has every field that can hold a name, each with "secret" in it.
func page() *states.Page {
	name := batch.Name{
		ID: workload.NewID("n", workload.Job, "k"), Kind: workload.Job, Key: "secret", Name: "secret name", Path: "/secret",
		Job: "secret job", User: "secret user", Project: "secret project", Labels: map[string]string{"secret": "secret"},
	}
	short, _ := batch.ShortOf(name.ID)
	idle := batch.Name{ID: workload.NewID("n", workload.Idle, ""), Kind: workload.Idle, Name: "idle"}
	idleShort, _ := batch.ShortOf(idle.ID)
	p := &states.Page{
		Nodes: []states.Node{{Node: entry.Node{ID: "n", Cluster: "secret", Name: "secret", MachineID: "secret", Boot: "secret"}, Pool: "secret"}},
		Workloads: []states.Workload{
			{Short: short, Name: &name, Namespace: "secret", Pod: "secret", Container: "secret"},
			{Short: idleShort, Name: &idle}, {Short: 5, Name: &batch.Name{}}, {Short: 6},
		},
		Rows:     []states.Row{{Level: states.Hour, Minute: 120}},
		NodeRows: []states.NodeRow{{Level: states.Minute, NodeMinute: entry.NodeMinute{Minute: 121}}},
		Gaps:     []states.Gap{{Gap: meter.Gap{Detail: "secret"}}},
		Shifts:   []states.Shift{{Shift: entry.Shift{Boot: "secret", At: time.Unix(1, 0)}}},
		Nestings: []states.Nesting{{Host: -1, Workload: 3, Minute: 1440}},
	}
	p.Rows[0].Usage.Put(meter.CPU, 1, meter.Measured)
	return p
}

func TestMask(t *testing.T) {
	p, q, other, plain := page(), page(), page(), page()
	name := plain.Workloads[0].Name
	p.Mask([]byte("key"))
	q.Mask([]byte("key"))
	other.Mask([]byte("another"))
	text := fmt.Sprintf("%+v %+v %+v", p, p.Workloads[0].Name, p.Workloads[1].Name)
	if strings.Contains(text, "secret") || !strings.Contains(text, "idle") || strings.Count(text, "p-") != 13 {
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
	for name, change := range map[string]func(*states.Page){
		"no id":                func(p *states.Page) { p.Nodes[0].ID = "" },
		"no such node":         func(p *states.Page) { p.Workloads[0].Node = 1 },
		"another short":        func(p *states.Page) { p.Workloads[0].Short++ },
		"no such workload":     func(p *states.Page) { p.Rows[0].Workload = 4 },
		"half an hour":         func(p *states.Page) { p.Rows[0].Minute = 90 },
		"no level":             func(p *states.Page) { p.Rows[0].Level = 3 },
		"before 1970":          func(p *states.Page) { p.Rows[0].Minute = -60 },
		"less than nothing":    func(p *states.Page) { p.Rows[0].Usage.Amount[meter.CPU] = -1 },
		"less of a node":       func(p *states.Page) { p.NodeRows[0].Whole[1] = -1 },
		"no node of a row":     func(p *states.Page) { p.NodeRows[0].Node = -1 },
		"no node of a gap":     func(p *states.Page) { p.Gaps[0].Node = 1 },
		"no node of a nesting": func(p *states.Page) { p.Nestings[0].Node = -1 },
		"no host of it":        func(p *states.Page) { p.Nestings[0].Host = 1 },
		"no workload of it":    func(p *states.Page) { p.Nestings[0].Workload = 4 },
		"no day of it":         func(p *states.Page) { p.Nestings[0].Minute = 60 },
		"nor of a shift":       func(p *states.Page) { p.Shifts[0].Node = 1 },
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
		if got := (states.Source{Cluster: c[0]}).Of(c[1]); got != c[2] {
			t.Errorf("%q in %q is %q, want %q", c[1], c[0], got, c[2])
		}
	}
}
