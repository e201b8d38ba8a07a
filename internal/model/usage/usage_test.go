package usage_test

import (
	"encoding/json"
	"testing"

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
		55: "network_rx_internet", 56: "network_tx_internet"}
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

func TestAddPanicsOnOverflow(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("an amount past 2^63 did not panic")
		}
	}()
	var u usage.Usage
	u.Put(usage.CPU, 1<<62, usage.Measured)
	u.Put(usage.CPU, 1<<62, usage.Measured)
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
