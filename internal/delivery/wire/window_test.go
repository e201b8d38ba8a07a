package wire_test

import (
	stdcmp "cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

func of(kind workload.Kind, key string, amounts ...int64) usage.Row {
	r := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: workload.NewID("n", kind, key), Kind: kind, Key: key}})
	for i, a := range amounts {
		res := []usage.Resource{usage.CPU, usage.Memory, usage.PIDsPeak}[i]
		r.Usage.Put(res, a, usage.Measured)
		r.Has |= usage.SetOf(res)
		r.Total[res] = 100 * a
	}
	return r
}

func TestPrepare(t *testing.T) {
	w := usage.Window{Boot: "b", Start: 1, End: 2, Offset: 3, StartReason: usage.StartBooted, CPUs: 4, Balance: usage.Balance{Lost: 5},
		Gaps: []usage.Gap{{Detail: "in the batch"}}, Rows: []usage.Row{
			of(workload.System, "", 0, 0),
			of(workload.Idle, "", 0),
			of(workload.Pod, "nothing", 0, 0, 0),
			of(workload.Pod, "ended", 0, 0, 0),
			of(workload.Pod, "memory", 0, 7, 9),
			of(workload.Pod, "cpu", 7),
		}}
	w.Rows[3].Ended = true
	w.Rows[4].Usage.Amount[usage.OOMKills] = 1 // absent
	w.Rows[5].Has |= usage.SetOf(usage.OOMKills)
	w.Rows[5].Total[usage.OOMKills] = 1 // not used in the window
	w.Rows[1].Has = 0
	w.Total.Put(usage.DiskRead, 6, usage.Measured)
	rows := slices.Clone(w.Rows)
	sent := wire.Prepare(&w)
	want := usage.Window{Boot: "b", Start: 1, End: 2, Offset: 3, StartReason: usage.StartBooted, CPUs: 4, Balance: w.Balance, Total: w.Total}
	for _, i := range []int{0, 1, 3, 4, 5} {
		row := usage.Row{ShortID: rows[i].ShortID, Usage: rows[i].Usage, Ended: i == 3}
		row.Usage.Amount[usage.OOMKills] = 0
		row.Has = rows[i].Has & usage.SetOf(usage.CPU, usage.Memory)
		switch i {
		case 4:
			row.Total[usage.Memory] = 700
		case 5:
			row.Total[usage.CPU] = 700
		}
		want.Rows = append(want.Rows, row)
	}
	if want.Rows[1].Has != 0 || want.Rows[0].Has != usage.SetOf(usage.CPU, usage.Memory) {
		t.Fatal("the test has other totals than it means")
	}
	want.SortRows()
	got := decode(t, encode(t, &batch.Batch{Windows: []usage.Window{sent}}))
	if d := cmp.Diff(&batch.Batch{Windows: []usage.Window{want}}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	// The window has its rows, in another order: those that are sent, and the rest.
	if len(w.Rows) != len(rows) || &w.Rows[0] != &sent.Rows[0] || w.Rows[5].Workload != rows[2].Workload {
		t.Errorf("rows %+v", w.Rows)
	}
	for _, row := range w.Rows {
		if !slices.ContainsFunc(rows, func(r usage.Row) bool {
			return r.Workload == row.Workload && r.Usage == row.Usage && r.Total == row.Total
		}) {
			t.Errorf("no row was %+v", row)
		}
	}
}

// TestPrepareOrder checks that rows of any order are sent in that of their ShortIDs, those of a workload in
// the order that they have.
func TestPrepareOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w usage.Window
		want := []usage.Row{}
		for i, id := range rapid.SliceOfN(rapid.IntRange(1, 9), 0, 12).Draw(t, "ids") {
			row := of(workload.Pod, fmt.Sprint(id), rapid.Int64Range(0, 1).Draw(t, "cpu")*int64(1+i))
			w.Rows = append(w.Rows, row)
			if row.Usage.Amount[usage.CPU] != 0 {
				want = append(want, row)
			}
		}
		slices.SortStableFunc(want, func(a, b usage.Row) int { return stdcmp.Compare(a.ShortID, b.ShortID) })
		got := wire.Prepare(&w).Rows
		if !slices.EqualFunc(got, want, func(a, b usage.Row) bool { return a.ShortID == b.ShortID && a.Usage == b.Usage }) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestPreparePanicsOnAMalformedID(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	row := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: "x", Kind: workload.Pod}})
	row.Usage.Put(usage.CPU, 1, usage.Measured)
	wire.Prepare(&usage.Window{Rows: []usage.Row{row}})
}

func TestNameOf(t *testing.T) {
	row := of(workload.Pod, "uid", 1)
	row.Workload.Name, row.Workload.Path, row.Workload.Parent = "pod uid", "/p", "parent"
	want := batch.Name{ID: row.Workload.ID, Kind: workload.Pod, Key: "uid", Name: "pod uid", Path: "/p", Parent: "parent"}
	if d := cmp.Diff(want, wire.NameOf(&row)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
