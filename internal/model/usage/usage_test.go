package usage_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// Numbers are part of stored data: they are written out here once more, so that
// no edit of the list moves one unseen.
func TestResourceNumbersStay(t *testing.T) {
	want := map[usage.Resource]string{1: "cpu", 2: "cpu_user", 3: "cpu_system", 4: "cpu_throttled", 5: "memory",
		6: "memory_peak", 7: "memory_anon", 8: "memory_file", 9: "memory_working", 10: "disk_read", 11: "disk_written",
		12: "disk_reads", 13: "disk_writes", 14: "network_rx", 15: "network_tx", 16: "network_rx_packets",
		17: "network_tx_packets", 18: "processes", 19: "pids", 20: "pids_peak", 21: "oom_kills", 22: "pressure_cpu",
		23: "pressure_memory", 24: "pressure_io", 25: "energy_package", 26: "energy_dram", 27: "energy_gpu",
		28: "energy_rest", 29: "energy_error", 30: "energy_idle", 31: "cpu_peak", 32: "cpu_periods",
		33: "cpu_throttled_periods", 34: "memory_high_events", 35: "memory_max_events",
		36: "cpu_reserved", 37: "cpu_limit", 38: "memory_reserved", 39: "memory_limit", 40: "storage_reserved", 41: "gpu_reserved",
		42: "reserved_time", 43: "cpu_limited_time", 44: "memory_limited_time",
		45: "network_rx_node", 46: "network_tx_node", 47: "network_rx_box", 48: "network_tx_box", 49: "network_rx_internal",
		50: "network_tx_internal", 51: "network_rx_zone", 52: "network_tx_zone", 53: "network_rx_peering", 54: "network_tx_peering",
		55: "network_rx_internet", 56: "network_tx_internet", 57: "storage"}
	got := map[usage.Resource]string{}
	usage.All.Each(func(r usage.Resource) { got[r] = r.String() })
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("resources (-want +got):\n%s", d)
	}
}

func TestDetails(t *testing.T) {
	usage.All.Each(func(r usage.Resource) {
		d := r.Detail()
		if d.Name == "" || d.Help == "" || d.Unit == unit.Unknown || d.Kind == 0 {
			t.Errorf("resource %d lacks something: %+v", r, d)
		}
		if (d.Level == unit.Unknown) != (d.Kind == usage.Counter) {
			t.Errorf("%v: level %v for kind %d", r, d.Level, d.Kind)
		}
	})
}

func drawUsage(t *rapid.T) (u usage.Usage) {
	usage.All.Each(func(r usage.Resource) {
		if rapid.Bool().Draw(t, "present") {
			u.Put(r, rapid.Int64Range(0, 1<<40).Draw(t, "amount"), usage.Quality(rapid.IntRange(1, 3).Draw(t, "quality")))
		}
	})
	return u
}

// In a sum the order is nothing, absent is not zero, peaks do not add and the
// worse quality stays.
func TestUsageAdds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawUsage(t), drawUsage(t)
		ab, ba := a, b
		ab.Add(&b)
		ba.Add(&a)
		if d := cmp.Diff(ab, ba); d != "" {
			t.Fatalf("a+b and b+a differ:\n%s", d)
		}
		if ab.Present != a.Present|b.Present {
			t.Errorf("present %b, want %b", ab.Present, a.Present|b.Present)
		}
		ab.Present.Each(func(r usage.Resource) {
			want := a.Amount[r] + b.Amount[r]
			if r.Detail().Kind == usage.Peak {
				want = max(a.Amount[r], b.Amount[r])
			}
			if got, ok := ab.Get(r); got != want || !ok {
				t.Errorf("%v = %d, %t, want %d", r, got, ok, want)
			}
			if got, want := ab.Quality.Get(r), max(a.Quality.Get(r), b.Quality.Get(r)); got != want {
				t.Errorf("%v is %v, want %v", r, got, want)
			}
		})
	})
}

// TestPut checks that amounts add up, that of peaks the higher one stays, and of qualities the worse one.
func TestPut(t *testing.T) {
	var u usage.Usage
	if v, ok := u.Get(usage.CPU); ok || v != 0 || u.Quality.Get(usage.CPU) != usage.Absent {
		t.Errorf("without an amount: %+v", u)
	}
	for _, c := range []struct {
		r      usage.Resource
		amount int64
		q      usage.Quality
		sum    int64
		worst  usage.Quality
	}{
		{usage.CPU, 0, usage.Measured, 0, usage.Measured}, {usage.CPU, 3, usage.Modelled, 3, usage.Modelled}, {usage.CPU, 4, usage.Apportioned, 7, usage.Modelled},
		{usage.MemoryPeak, 3, usage.Apportioned, 3, usage.Apportioned}, {usage.MemoryPeak, 2, usage.Measured, 3, usage.Apportioned}, {usage.MemoryPeak, 5, usage.Measured, 5, usage.Apportioned},
	} {
		u.Put(c.r, c.amount, c.q)
		if v, ok := u.Get(c.r); !ok || v != c.sum || u.Quality.Get(c.r) != c.worst {
			t.Errorf("%v after %d, %v: %d, %t, %v; want %d, %v", c.r, c.amount, c.q, v, ok, u.Quality.Get(c.r), c.sum, c.worst)
		}
	}
}

// TestAddPanicsOnOverflow checks that a sum of 2^63 is refused, and that one less is not.
func TestAddPanicsOnOverflow(t *testing.T) {
	for _, c := range []struct {
		a, b int64
		fits bool
	}{{1 << 62, 1 << 62, false}, {math.MaxInt64, 1, false}, {1, math.MaxInt64, false}, {math.MaxInt64 - 1, 1, true}, {math.MaxInt64, 0, true}, {1 << 62, 1<<62 - 1, true}} {
		func() {
			defer func() {
				if fits := recover() == nil; fits != c.fits {
					t.Errorf("%d + %d fits: %t, want %t", c.a, c.b, fits, c.fits)
				}
			}()
			var u usage.Usage
			u.Put(usage.CPU, c.a, usage.Measured)
			u.Put(usage.CPU, c.b, usage.Measured)
		}()
	}
}

// TestReadingPut checks that a value of a reading is there once it is put.
func TestReadingPut(t *testing.T) {
	var g usage.Reading
	g.Put(usage.CPU, 7)
	g.Put(usage.Memory, 0)
	if g.Has != usage.SetOf(usage.CPU, usage.Memory) || g.Value[usage.CPU] != 7 {
		t.Errorf("%+v", g)
	}
}

// TestWall checks the wall time of a snapshot.
func TestWall(t *testing.T) {
	s := usage.Snapshot{At: 5e9 + 7, Offset: 1_700_000_000e9}
	if got := s.Wall(); !got.Equal(time.Unix(1_700_000_005, 7)) || got.Location() != time.UTC {
		t.Errorf("%v", got)
	}
}

// TestBalanceAdds checks that each part of a balance adds, and when the parts sum to the whole.
func TestBalanceAdds(t *testing.T) {
	shares := func(v int64) (s usage.Shares) {
		for i := range s {
			s[i] = v * int64(i+1)
		}
		return s
	}
	b := usage.Balance{Whole: shares(6), Workloads: shares(3), System: shares(2), Idle: shares(2), Skew: shares(1), Violations: 1, Lost: 2}
	b.Add(&usage.Balance{Whole: shares(60), Workloads: shares(30), System: shares(20), Idle: shares(5), Skew: shares(-5), Violations: 10, Lost: 20})
	want := usage.Balance{Whole: shares(66), Workloads: shares(33), System: shares(22), Idle: shares(7), Skew: shares(-4), Violations: 11, Lost: 22}
	if d := cmp.Diff(want, b); d != "" {
		t.Errorf("sum (-want +got):\n%s", d)
	}
	for i, r := range usage.Wholes {
		if b.Whole.Get(r) != 66*int64(i+1) || !b.IsBalanced(r) {
			t.Errorf("%v of %d is balanced: %t", r, b.Whole.Get(r), b.IsBalanced(r))
		}
		for _, part := range []*usage.Shares{&b.Whole, &b.Workloads, &b.System, &b.Idle, &b.Skew} {
			if part[i]++; b.IsBalanced(r) {
				t.Errorf("%v is balanced with 1 more: %+v", r, b)
			}
			part[i]--
		}
	}
}

// TestBalanceRefused checks that shares are read only if there is a number of each.
func TestBalanceRefused(t *testing.T) {
	whole, err := json.Marshal(usage.Shares{})
	if err != nil {
		t.Fatal(err)
	}
	for text, ok := range map[string]bool{
		string(whole): true, "{}": false, "[]": false, strings.Replace(string(whole), "{", `{"later":1,`, 1): true,
		strings.Replace(string(whole), "{", `{"later":true,`, 1): false, strings.Replace(string(whole), ":0", ":true", 1): false,
	} {
		var s usage.Shares
		if err := json.Unmarshal([]byte(text), &s); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestBalanceJSON(t *testing.T) {
	want := usage.Balance{Violations: 1, Lost: 2}
	for i := range usage.Wholes {
		want.Whole[i], want.Skew[i] = int64(i)*1_000_000_007, -int64(i)
	}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got usage.Balance
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s came back different:\n%s", b, d)
	}
}
