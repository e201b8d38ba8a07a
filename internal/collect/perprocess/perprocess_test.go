package perprocess_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/collect/perprocess"
)

const ms = 1_000_000

func id(pid int32) perprocess.ID { return perprocess.ID{PID: pid, Start: 1} }

func TestSplit(t *testing.T) {
	type span struct {
		total int64
		live  []perprocess.Process
		want  []perprocess.Line
	}
	a, b := id(1), id(2)
	for name, c := range map[string]struct {
		open  []perprocess.Process
		spans []span
	}{
		"earlier use is not given": {
			[]perprocess.Process{{ID: a, CPU: 500}},
			[]span{{100, []perprocess.Process{{ID: a, CPU: 600}}, []perprocess.Line{{a, 100}, {perprocess.Exited, 0}}}},
		},
		"short-lived children": {
			[]perprocess.Process{{ID: a}},
			[]span{{100, []perprocess.Process{{ID: a, CPU: 30}}, []perprocess.Line{{a, 30}, {perprocess.Exited, 70}}}},
		},
		"the last part of an exited process goes to Exited": {
			[]perprocess.Process{{ID: a}, {ID: b}},
			[]span{
				{100, []perprocess.Process{{ID: a, CPU: 40}, {ID: b, CPU: 60}}, []perprocess.Line{{a, 40}, {b, 60}, {perprocess.Exited, 0}}},
				{50, []perprocess.Process{{ID: a, CPU: 70}}, []perprocess.Line{{a, 30}, {perprocess.Exited, 20}}},
			},
		},
		"skew is owed, then given": {
			[]perprocess.Process{{ID: a}, {ID: b}},
			[]span{
				{90, []perprocess.Process{{ID: a, CPU: 40}, {ID: b, CPU: 60}}, []perprocess.Line{{a, 36}, {b, 54}, {perprocess.Exited, 0}}},
				{110, []perprocess.Process{{ID: a, CPU: 80}, {ID: b, CPU: 120}}, []perprocess.Line{{a, 44}, {b, 66}, {perprocess.Exited, 0}}},
			},
		},
		"a reused PID is another process": {
			[]perprocess.Process{{ID: a, CPU: 1000}},
			[]span{{100, []perprocess.Process{{ID: perprocess.ID{PID: 1, Start: 2}, CPU: 40}},
				[]perprocess.Line{{perprocess.ID{PID: 1, Start: 2}, 40}, {perprocess.Exited, 60}}}},
		},
		"earlier use of a process that entered is not given": {
			nil,
			[]span{{100, []perprocess.Process{{ID: a, CPU: 1040, Entered: 1000}}, []perprocess.Line{{a, 40}, {perprocess.Exited, 60}}}},
		},
		"left and came back": {
			[]perprocess.Process{{ID: a, CPU: 10}},
			[]span{
				{5, nil, []perprocess.Line{{perprocess.Exited, 5}}},
				{7, []perprocess.Process{{ID: a, CPU: 100, Entered: 95}}, []perprocess.Line{{a, 5}, {perprocess.Exited, 2}}},
			},
		},
		"a decreasing counter gives nothing twice": {
			[]perprocess.Process{{ID: a, CPU: 100}},
			[]span{
				{10, []perprocess.Process{{ID: a, CPU: 95}}, []perprocess.Line{{a, 0}, {perprocess.Exited, 10}}},
				{10, []perprocess.Process{{ID: a, CPU: 110}}, []perprocess.Line{{a, 10}, {perprocess.Exited, 0}}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			acc := perprocess.New(c.open)
			for i, s := range c.spans {
				if d := cmp.Diff(s.want, acc.Split(s.total, s.live)); d != "" {
					t.Errorf("span %d (-want +got):\n%s", i, d)
				}
			}
		})
	}
}

func TestSplitDiscardsBeyondSkew(t *testing.T) {
	a := perprocess.New([]perprocess.Process{{ID: id(1)}})
	a.Split(0, []perprocess.Process{{ID: id(1), CPU: 5 * perprocess.MaxSkew}})
	if want := int64(4 * perprocess.MaxSkew); a.Discarded != want {
		t.Errorf("Discarded = %d, want %d", a.Discarded, want)
	}
	lines := a.Split(9*perprocess.MaxSkew, []perprocess.Process{{ID: id(1), CPU: 5 * perprocess.MaxSkew}})
	if lines[0].CPU != perprocess.MaxSkew {
		t.Errorf("owed = %d, want %d", lines[0].CPU, int64(perprocess.MaxSkew))
	}
}

func TestSplitPanicsOnNegativeTotal(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Split(-1) did not panic")
		}
	}()
	perprocess.New(nil).Split(-1, nil)
}

// For any processes and totals, related or not, the lines sum to the total, none is
// negative, and no process gets more than it used.
func TestSplitSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpu := map[perprocess.ID]int64{}
		given := map[perprocess.ID]int64{}
		entered := map[perprocess.ID]int64{}
		var live []perprocess.Process
		seen := map[perprocess.ID]bool{}
		step := func(first bool) {
			live = live[:0]
			now := map[perprocess.ID]bool{}
			for i := range rapid.IntRange(0, 8).Draw(t, "processes") {
				p := perprocess.Process{ID: perprocess.ID{PID: int32(i + 1), Start: rapid.Int64Range(1, 2).Draw(t, "start")}}
				if _, ok := cpu[p.ID]; !ok && !first {
					entered[p.ID] = rapid.Int64Range(0, 10).Draw(t, "entered")
					cpu[p.ID] = entered[p.ID]
				}
				if !seen[p.ID] {
					entered[p.ID] = cpu[p.ID] // it comes back
				}
				now[p.ID] = true
				cpu[p.ID] += rapid.Int64Range(0, 3*perprocess.MaxSkew).Draw(t, "cpu")
				if first {
					entered[p.ID] = cpu[p.ID]
				}
				p.CPU, p.Entered = cpu[p.ID], entered[p.ID]
				live = append(live, p)
			}
			seen = now
		}
		step(true)
		a := perprocess.New(live)
		for range rapid.IntRange(1, 10).Draw(t, "spans") {
			step(false)
			total := rapid.Int64Range(0, 20*perprocess.MaxSkew).Draw(t, "total")
			lines := a.Split(total, live)
			if len(lines) != len(live)+1 || lines[len(live)].ID != perprocess.Exited {
				t.Fatalf("Split gave %d lines for %d processes", len(lines), len(live))
			}
			sum := int64(0)
			for i, l := range lines {
				if l.CPU < 0 {
					t.Fatalf("line %v is negative", l)
				}
				sum += l.CPU
				if i < len(live) {
					given[l.ID] += l.CPU
					if most := live[i].CPU; given[l.ID] > most {
						t.Fatalf("%v was given %d, used %d", l.ID, given[l.ID], most)
					}
				}
			}
			if sum != total {
				t.Fatalf("lines sum to %d, want %d", sum, total)
			}
		}
	})
}

// TestSplitBoundsSkew reads a workload and its processes with a jitter between the two:
// Exited gets at most the largest jitter if nothing exited, over any number of spans.
func TestSplitBoundsSkew(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const jitter = 5 * ms
		var cpu [4]int64
		var used, shown, exited int64
		live := make([]perprocess.Process, len(cpu))
		for i := range live {
			live[i].ID = id(int32(i + 1))
		}
		a := perprocess.New(live)
		for range rapid.IntRange(1, 60).Draw(t, "spans") {
			for i := range cpu {
				d := rapid.Int64Range(0, 1000*ms).Draw(t, "cpu")
				cpu[i] += d
				used += d
				live[i].CPU = cpu[i]
			}
			now := max(shown, used+rapid.Int64Range(-jitter, jitter).Draw(t, "jitter"))
			lines := a.Split(now-shown, live)
			shown = now
			exited += lines[len(live)].CPU
		}
		if exited > jitter {
			t.Fatalf("exited = %d ns after jitter of at most %d", exited, int64(jitter))
		}
		if a.Discarded != 0 {
			t.Fatalf("Discarded = %d, want 0", a.Discarded)
		}
	})
}

func BenchmarkSplit(b *testing.B) {
	live := make([]perprocess.Process, 100)
	for i := range live {
		live[i].ID = id(int32(i + 1))
	}
	a := perprocess.New(live)
	for b.Loop() {
		for i := range live {
			live[i].CPU += int64(i)
		}
		a.Split(4900, live)
	}
}
