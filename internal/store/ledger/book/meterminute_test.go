package book

import (
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// The sums of meters and of what machines measured are exact beyond 32 bits, and begin with a minute.
func TestMeterRatios(t *testing.T) {
	d := openDB(t)
	const big = int64(1) << 32
	write(t, d, func(x *db.Tx) error {
		for minute, by := range map[int64]int64{4: 1000, 5: 1, 6: 2} {
			_, err := x.Exec("INSERT INTO outer_minute (node, minute, meters, meter, inside, measured) VALUES (1, $1, 'pdu', $2, $3, $4)", minute, by*(3*big+5), by*(2*big+7), by*(big+9))
			if err != nil {
				return err
			}
		}
		return nil
	})
	got, err := New(d, time.Hour, unlimited, 1).MeterRatios(t.Context(), time.Unix(300, 0))
	if err != nil || len(got) != 1 {
		t.Fatal(got, err)
	}
	r := got[0]
	if r.Node != "a" || r.Cluster != "c" || r.Meters != "pdu" || r.Minutes != 2 || r.Meter.String() != "38654705679" || r.Inside.String() != "25769803797" || r.Measured.String() != "12884901915" {
		t.Errorf("%+v", r)
	}
}

// meterGroup returns what a meter of nodes showed in a minute.
func meterGroup(minute int64, nodes ...string) *external.GroupMinute {
	return &external.GroupMinute{Minute: minute, Meters: []external.MeterEnergy{{Meter: "pdu", Nodes: nodes, Energy: 80e6, Error: 1e6}}, NeededFrom: map[string]int64{"pdu": external.MinuteStart(minute)}}
}

// A minute is booked once, while its meter is at it. Old samples and minutes are deleted once an hour. A failure is a gap
// of the nodes that are known.
func TestBookMinutes(t *testing.T) {
	d := openDB(t)
	k := New(d, time.Hour, unlimited, 1)
	const m = 100 * 60 // an hour begins
	write(t, d, func(x *db.Tx) error {
		return do(x, "INSERT INTO outer_meter (name, kind, next) VALUES ('pdu', 'energy', 5999)", "INSERT INTO outer_sample (meter, at_ns, value) VALUES ('pdu', 359939999999999, 1), ('pdu', 359940000000000, 2), ('pdu', 360000000000000, 3)",
			"INSERT INTO outer_minute (node, minute, meters, meter, inside, measured) VALUES (1, 5939, '', 0, 0, 0), (1, 5940, '', 0, 0, 0)",
			"INSERT INTO outer_energy (minute, meter, place, node, energy, error) VALUES (5939, 'x', 0, 1, 0, 0), (5940, 'x', 0, 1, 0, 0)")
	})
	failed := func(minute int64, why string) *external.GroupMinute {
		gm := meterGroup(minute, "a", "unknown", "b")
		gm.Failures = map[string]string{"pdu": why}
		return gm
	}
	for i, c := range []struct {
		gm   *external.GroupMinute
		done bool
		left []string // samples, minutes and energies that are left
		gaps []string
	}{
		{failed(m-2, "x"), false, []string{"3", "2", "2"}, nil},
		{failed(m, "x"), false, []string{"3", "2", "2"}, nil},
		{failed(m-1, "x"), true, []string{"2", "2", "2"}, []string{"1 359940 360000 meter pdu: x", "2 359940 360000 meter pdu: x"}},
		{failed(m-1, "x"), false, []string{"2", "2", "2"}, []string{"1 359940 360000 meter pdu: x", "2 359940 360000 meter pdu: x"}},
		{failed(m, "x"), true, []string{"1", "1", "1"}, []string{"1 359940 360060 meter pdu: x", "2 359940 360060 meter pdu: x"}},
		{failed(m+1, "y"), true, []string{"0", "1", "1"}, []string{"1 359940 360060 meter pdu: x", "1 360060 360120 meter pdu: y", "2 359940 360060 meter pdu: x", "2 360060 360120 meter pdu: y"}},
	} {
		out, done, err := k.BookMeterMinute(t.Context(), c.gm)
		if done != c.done || err != nil || out != nil {
			t.Errorf("%d: %v, %t, %v", i, out, done, err)
		}
		if got := rows(t, d, 1, "SELECT count(*) FROM outer_sample UNION ALL SELECT count(*) FROM outer_minute UNION ALL SELECT count(*) FROM outer_energy"); !slices.Equal(got, c.left) {
			t.Errorf("%d: %q are left, want %q", i, got, c.left)
		}
		if got := rows(t, d, 4, "SELECT node, from_ns / 1000000000, to_ns / 1000000000, detail FROM gap ORDER BY node, from_ns"); !slices.Equal(got, c.gaps) {
			t.Errorf("%d: gaps %q, want %q", i, got, c.gaps)
		}
	}
	// Minutes that are dropped, and those of an unknown node, are not adjusted.
	for i, gm := range []*external.GroupMinute{meterGroup(m+2, "a"), meterGroup(m+3, "a"), meterGroup(m+4, "a", "unknown")} {
		write(t, d, func(x *db.Tx) error {
			return do(x, "UPDATE counter SET minute_floor = 6003")
		})
		out, done, err := k.BookMeterMinute(t.Context(), gm)
		if !done || err != nil || len(out) != map[int]int{1: 1}[i] {
			t.Errorf("minute %d: %v, %t, %v", gm.Minute, out, done, err)
		}
	}
}

// Rows of a minute are made what its meter showed: energy above what they have goes to idle, which is added if
// needed, and the node's whole changes with it. The energy of the meter is kept.
func TestAdjustRows(t *testing.T) {
	d := openDB(t)
	k := New(d, time.Hour, unlimited, 1)
	id := workload.NewID("a", workload.Service, "s")
	short, _ := workload.ShortIDOf(id)
	row := batch.Minute{Workload: short, Minute: 6000, Usage: usage.Usage{Covered: time.Minute}}
	row.Usage.Put(usage.CPU, 5, usage.Measured)
	equal := row // has what the meter showed
	equal.Minute = 6002
	equal.Usage.Put(usage.EnergyPackage, 80e6, usage.Measured)
	total := batch.NodeMinute{Minute: 6002, CPUs: 4, Covered: time.Minute}
	total.Whole[slices.Index(usage.Wholes[:], usage.EnergyPackage)] = 80e6
	e := &batch.Entry{Node: "a", Number: 1, Names: []batch.Name{{ID: id, Kind: workload.Service}}, Minutes: []batch.Minute{row, equal}, Nodes: []batch.NodeMinute{{Minute: 6000, CPUs: 4, Covered: time.Minute}, total}}
	if r, err := k.Book(t.Context(), []*batch.Entry{e}); err != nil || r[0].Err != nil {
		t.Fatal(r, err)
	}
	write(t, d, func(x *db.Tx) error {
		return do(x, "INSERT INTO outer_meter (name, kind, next) VALUES ('pdu', 'energy', 6000)")
	})
	for minute := int64(6000); minute < 6003; minute++ { // the second has no rows
		out, done, err := k.BookMeterMinute(t.Context(), meterGroup(minute, "a"))
		if err != nil || !done || len(out) != 1 || out[0].Meter != 80e6 || out[0].Node != "a" || out[0].Minute != minute {
			t.Errorf("%+v, %t, %v", out, done, err)
		}
	}
	if got := rows(t, d, 5, "SELECT n.minute, n.cpus, n.whole_energy_package, n.whole_energy_rest, n.covered_ms FROM "+schema.NodeMinuteTable(5760)+" n ORDER BY n.minute"); !slices.Equal(got, []string{"6000 4 0 80000000 60000", "6001 4 0 80000000 0", "6002 4 80000000 0 60000"}) {
		t.Errorf("of the node: %q", got)
	}
	if got := rows(t, d, 4, "SELECT minute, count(*), sum(energy_package), sum(energy_rest) FROM "+schema.UsageMinuteTable(5760)+" GROUP BY minute ORDER BY minute"); !slices.Equal(got, []string{"6000 2 0 80000000", "6001 1 0 80000000", "6002 1 80000000 0"}) {
		t.Errorf("of the rows: %q", got)
	}
	if got := rows(t, d, 3, "SELECT name, named_ns, started_ns FROM workload WHERE kind = 'idle'"); !slices.Equal(got, []string{"idle 0 0"}) { // any name of the node is newer
		t.Errorf("idle: %q", got)
	}
	if got := rows(t, d, 4, "SELECT minute, meter, energy, error FROM outer_energy ORDER BY minute"); !slices.Equal(got, []string{"6000 pdu 80000000 1000000", "6001 pdu 80000000 1000000", "6002 pdu 80000000 1000000"}) {
		t.Errorf("of the meter: %q", got)
	}
}

// A whole that would be below zero becomes zero, and the rest of it goes to the skew.
func TestChangeTotals(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		m := &meterMinute{Tx: x, minute: 3, whole: NewChange(schema.NodeLayout), within: map[int64]int64{1: 2}}
		for domain := power.Package; domain < power.DomainLimit; domain++ {
			var n batch.NodeMinute
			r := usage.EnergyOf(domain)
			at := slices.Index(usage.Wholes[:], r)
			n.Whole[at], n.Skew[at] = 10, 3
			for by, want := range map[int64][2]int64{5: {15, 3}, -10: {0, 3}, -11: {0, 2}} {
				values := schema.EncodeNodeMinute(&n, 0)
				var changed [power.DomainLimit]int64
				changed[domain] = by
				m.changeTotals(1, values, &changed)
				got := schema.DecodeNodeMinute(3, values)
				if got.Whole[at] != want[0] || got.Skew[at] != want[1] || values[schema.ColRev] != x.Rev {
					t.Errorf("%s by %d: %d and %d, want %v", r, by, got.Whole[at], got.Skew[at], want)
				}
				if set := m.whole.wanted[0].Rows; len(set) != 1 || set[schema.RowKey{Minute: 3, ID: schema.Key(1, 2)}] == nil {
					t.Errorf("%v", set)
				}
			}
		}
		return nil
	})
}
