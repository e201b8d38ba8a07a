package wire_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

func of(kind workload.Kind, key string, amounts ...int64) usage.Row {
	r := usage.Row{Workload: workload.Workload{ID: workload.NewID("n", kind, key), Kind: kind, Key: key}}
	for i, a := range amounts {
		res := []usage.Resource{usage.CPU, usage.Memory, usage.PIDsPeak}[i]
		r.Usage.Put(res, a, usage.Measured)
		r.Total[res] = 100 * a
	}
	return r
}

func TestFromWindow(t *testing.T) {
	w := usage.Window{Boot: "b", Start: 1, End: 2, Offset: 3, StartReason: usage.StartBooted, CPUs: 4, Balance: usage.Balance{Lost: 5}, Rows: []usage.Row{
		of(workload.System, "", 0, 0),
		of(workload.Idle, "", 0),
		of(workload.Pod, "nothing", 0, 0, 0),
		of(workload.Pod, "ended", 0, 0, 0),
		of(workload.Pod, "memory", 0, 7, 9),
		of(workload.Pod, "cpu", 7),
	}}
	w.Rows[3].Ended = true
	w.Rows[4].Usage.Amount[usage.OOMKills] = 1 // absent
	w.Total.Put(usage.DiskRead, 6, usage.Measured)
	var asked []string
	got := wire.FromWindow(&w, func(r *usage.Row) bool {
		asked = append(asked, r.Workload.Key)
		return r.Workload.Key == "memory"
	})
	want := batch.Window{Boot: "b", Start: 1, End: 2, Offset: 3, Opening: usage.StartBooted, CPUs: 4, Balance: w.Balance, Total: w.Total}
	for _, i := range []int{0, 1, 3, 4, 5} {
		short, ok := batch.ShortIDOf(w.Rows[i].Workload.ID)
		if !ok {
			t.Fatal("an id has no short")
		}
		row := batch.Row{Workload: short, Usage: w.Rows[i].Usage, Ended: i == 3}
		if i == 4 {
			row.Usage.Amount[usage.OOMKills] = 0
			row.Has = usage.SetOf(usage.CPU, usage.Memory)
			row.Total[usage.Memory] = 700
		}
		want.Rows = append(want.Rows, row)
	}
	slices.SortFunc(want.Rows, func(a, b batch.Row) int {
		if a.Workload < b.Workload {
			return -1
		}
		return 1
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	slices.Sort(asked)
	if d := cmp.Diff([]string{"", "", "cpu", "ended", "memory"}, asked); d != "" {
		t.Errorf("asked for totals (-want +got):\n%s", d)
	}
	if w := wire.FromWindow(&w, nil); w.Rows[2].Has != 0 {
		t.Error("totals without being asked for")
	}
}

func TestFromWindowPanicsOnAMalformedID(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	row := of(workload.Pod, "x", 1)
	row.Workload.ID = "x"
	wire.FromWindow(&usage.Window{Rows: []usage.Row{row}}, nil)
}

func TestNameOf(t *testing.T) {
	row := of(workload.Pod, "uid", 1)
	row.Workload.Name, row.Workload.Path, row.Parent = "pod uid", "/p", "parent"
	want := batch.Name{ID: row.Workload.ID, Kind: workload.Pod, Key: "uid", Name: "pod uid", Path: "/p", Parent: "parent"}
	if d := cmp.Diff(want, wire.NameOf(&row)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
