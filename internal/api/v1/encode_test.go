package v1_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"mete.dev/mete/internal/api/v1"
)

// A pipe accepts limit writes; later writes fail.
type pipe struct{ writes, limit, bytes int }

var errFull = errors.New("full")

func (p *pipe) Write(b []byte) (int, error) {
	if p.writes++; p.writes > p.limit {
		return 0, errFull
	}
	p.bytes += len(b)
	return len(b), nil
}

// Elements are written as they are encoded, and a writer that fails ends it.
func TestEncodingStreams(t *testing.T) {
	a := v1.UsageOf(manyGroups(), nil)
	for name, write := range map[string]func(*pipe) error{
		"JSON": func(p *pipe) error { return a.WriteJSON(p) },
		"CSV":  func(p *pipe) error { return a.WriteCSV(p) },
		"list": func(p *pipe) error { return nodes().WriteJSON(p) },
	} {
		all := &pipe{limit: 1 << 30}
		if err := write(all); err != nil || all.writes < 3 {
			t.Errorf("%s: %d bytes in %d writes, %v", name, all.bytes, all.writes, err)
		}
		if err := write(&pipe{limit: 2}); !errors.Is(err, errFull) {
			t.Errorf("%s: after two writes %v, want %v", name, err, errFull)
		}
	}
}

// The columns of CSV are the keys of JSON, but for objects, which have a column for each
// of their keys, and what CSV leaves out.
func TestColumnsAreKeys(t *testing.T) {
	for _, l := range []v1.Table{nodes(), sources(), gaps(), vms(), workloads(), tokens(), v1.ListOf([]v1.Cluster{{}}, copyOf[v1.Cluster]), v1.ListOf([]v1.Stream{{}}, copyOf[v1.Stream]), v1.ListOf([]v1.Alert{{}}, copyOf[v1.Alert])} {
		element := reflect.TypeOf(l).Field(0).Type.Elem()
		var want []string
		for field := range element.Fields() {
			key, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			switch {
			case field.Tag.Get("csv") == "-":
			case key == "nested_in":
				want = append(want, key, key+"_name", key+"_workload")
			default:
				want = append(want, key)
			}
		}
		header, _, _ := bytes.Cut(v1.CSV(l), []byte("\n"))
		if got := string(header); got != strings.Join(want, ",") {
			t.Errorf("%s: columns %s, want %s", element, got, want)
		}
	}
}

func copyOf[T any](v *T) T { return *v }

// TestFiguresOfNone checks that null and empty figures are read as having no figures, and that
// an unknown figure is absent.
func TestFiguresOfNone(t *testing.T) {
	var none *v1.Figures
	var read struct{ Rest, Whole *v1.Figures }
	if err := json.Unmarshal([]byte(`{"Rest":null,"Whole":{}}`), &read); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*v1.Figures{none, read.Rest, read.Whole} {
		if got := f.Get("cpu_seconds"); got != (v1.Amount{}) {
			t.Errorf("CPU time of nothing is %v", got)
		}
	}
	if got := read.Whole.Get("nothing"); got != (v1.Amount{}) {
		t.Errorf("an unknown figure is %v", got)
	}
}
