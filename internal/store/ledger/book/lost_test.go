package book

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// Lost batches count for the quotas of streams and texts: a new stream beyond them waits, and a text is left out.
func TestLostQuota(t *testing.T) {
	now := time.Unix(0, 5e18)
	loss := func(stream byte, from, to uint64) batch.Loss {
		return batch.Loss{Stream: batch.Stream{stream}, From: from, To: to, Hash: batch.Hash{7}, Gap: usage.Gap{From: time.Unix(0, int64(10*from)+int64(stream)), To: time.Unix(9, 0), Reason: usage.Forgotten, Detail: "gone"}}
	}
	d := openDB(t)
	quota := unlimited
	quota.Streams, quota.Bytes = 2, 2*(2*rowBytes+4)
	k := New(d, time.Hour, quota, 9)
	for i, c := range []struct {
		node string
		loss batch.Loss
		want batch.Reply
		err  error
	}{
		{"a", loss(1, 0, 1), batch.Reply{}, fault.ErrInvalid},
		{"a", loss(1, 2, 1), batch.Reply{}, fault.ErrInvalid},
		{"a", loss(1, 1, math.MaxInt64), batch.Reply{}, fault.ErrInvalid},
		{"none", loss(1, 1, 1), batch.Reply{}, fault.ErrDenied},
		{"a", loss(1, 2, 2), batch.Reply{Verdict: batch.OutOfOrder, Next: 1}, nil},
		{"a", loss(1, 1, 1), batch.Reply{Verdict: batch.Accepted, Next: 2}, nil},
		{"a", loss(1, 1, 1), batch.Reply{Verdict: batch.Duplicate, Next: 2}, nil},
		{"a", loss(2, 1, math.MaxInt64-1), batch.Reply{Verdict: batch.Accepted, Next: math.MaxInt64}, nil},
		{"b", loss(1, 2, 2), batch.Reply{}, fault.ErrDenied},
		{"a", loss(3, 1, 1), batch.Reply{}, errQuota},
		{"a", loss(1, 2, 4), batch.Reply{Verdict: batch.Accepted, Next: 5}, nil}, // its text is beyond the quota
	} {
		r, err := k.Lost(t.Context(), c.node, c.loss, now)
		if r.Verdict != c.want.Verdict || r.Next != c.want.Next || !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%d: %+v, %v; want %+v, %v", i, r, err, c.want, c.err)
		}
	}
	if got, want := rows(t, d, 2, "SELECT streams, bytes FROM node_quota"), []string{"2 520"}; !slices.Equal(got, want) {
		t.Errorf("quota %q, want %q", got, want)
	}
	if got, want := rows(t, d, 2, "SELECT next, seen_ns FROM stream ORDER BY next"), []string{"5 5000000000000000000", "9223372036854775807 5000000000000000000"}; !slices.Equal(got, want) {
		t.Errorf("streams %q, want %q", got, want)
	}
	if got, want := rows(t, d, 2, "SELECT action, count(*) FROM audit GROUP BY action ORDER BY action"), []string{"batch.lost 2", "node.quota 2"}; !slices.Equal(got, want) {
		t.Errorf("audit %q, want %q", got, want)
	}
	if got, want := rows(t, d, 2, "SELECT from_ns, detail FROM gap ORDER BY from_ns"), []string{"11 gone", "12 gone", "21 "}; !slices.Equal(got, want) {
		t.Errorf("gaps %q, want %q", got, want)
	}
}

// A settled minute is divided again from what its rows had before, and what came late. One that an earlier version
// settled keeps what it has.
func TestRestore(t *testing.T) {
	d := openDB(t)
	energy := func(uJ int64) (u usage.Usage) {
		u.Put(usage.EnergyPackage, uJ, usage.Measured)
		u.Put(usage.CPU, 1, usage.Measured)
		return u
	}
	now := energy(70)
	late := energy(5)
	key := schema.RowKey{Minute: 3, ID: schema.Key(4, 2)}
	for name, c := range map[string]struct {
		before any // of outer_minute; false if there is no row
		late   map[schema.RowKey][]int64
		want   int64
	}{
		"not settled":        {false, map[schema.RowKey][]int64{}, 70},
		"settled":            {encodeEnergies([]external.Row{{Key: 4, Usage: energy(20)}}), nil, 70},
		"by another version": {nil, map[schema.RowKey][]int64{}, 70},
		"with late rows":     {encodeEnergies([]external.Row{{Key: 4, Usage: energy(20)}}), map[schema.RowKey][]int64{key: schema.EncodeUsage(&late, 1)}, 25},
		"with others":        {encodeEnergies([]external.Row{{Key: 4, Usage: energy(20)}}), map[schema.RowKey][]int64{}, 20},
		"a new row":          {encodeEnergies(nil), map[schema.RowKey][]int64{key: schema.EncodeUsage(&late, 1)}, 5},
	} {
		write(t, d, func(x *db.Tx) error {
			if err := do(x, "DELETE FROM outer_minute"); err != nil {
				return err
			}
			if c.before != false {
				if _, err := x.Exec("INSERT INTO outer_minute (node, minute, meters, meter, inside, measured, before) VALUES (1, 3, '', 0, 0, 0, $1)", c.before); err != nil {
					return err
				}
			}
			m := &meterMinute{Tx: x, minute: 3, late: c.late, settled: map[int64]bool{}}
			list := []external.Row{{Key: key.ID, Usage: now}}
			if err := m.restore(1, list); err != nil {
				return err
			}
			if u := list[0].Usage; u.Amount[usage.EnergyPackage] != c.want || u.Amount[usage.CPU] != 1 || m.settled[1] != (c.before != false) {
				t.Errorf("%s: %+v, settled %v", name, u, m.settled)
			}
			return nil
		})
	}
	write(t, d, func(x *db.Tx) error {
		if err := do(x, "DELETE FROM outer_minute", "INSERT INTO outer_minute (node, minute, meters, meter, inside, measured, before) VALUES (1, 3, '', 0, 0, 0, x'FF')"); err != nil {
			return err
		}
		m := &meterMinute{Tx: x, minute: 3, late: map[schema.RowKey][]int64{}, settled: map[int64]bool{}}
		if err := m.restore(1, nil); !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("an unknown form: %v", err)
		}
		return nil
	})
}

// Meters that feed a node in common are divided together, in the order in which they name nodes.
func TestSettledGroups(t *testing.T) {
	d := openDB(t)
	write(t, d, func(x *db.Tx) error {
		if err := addNodes(x, "c", "d", "e"); err != nil {
			return err
		}
		nodes := map[string]int64{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
		gm := &external.GroupMinute{Minute: 3, Meters: []external.MeterEnergy{{Meter: "m1", Nodes: []string{"b", "a"}, Energy: 10, Error: 1}, {Meter: "m2", Nodes: []string{"c"}, Energy: 20, Error: 2}, {Meter: "m3", Nodes: []string{"c", "d"}, Energy: 30, Error: 3}, {Meter: "m4", Nodes: []string{"e"}, Energy: 40}}}
		if err := keepEnergy(x, gm, nodes); err != nil {
			return err
		}
		for what, c := range map[string]struct {
			late map[int64]bool
			want []string
		}{
			"one": {map[int64]bool{1: true}, []string{"m1 [b a] 10 1"}}, "of two meters": {map[int64]bool{4: true}, []string{"m2 [c] 20 2", "m3 [c d] 30 3"}},
			"two groups": {map[int64]bool{2: true, 5: true}, []string{"m1 [b a] 10 1", "m4 [e] 40 0"}}, "none": {nil, nil},
		} {
			groups, err := settledGroups(x, 3, c.late)
			if err != nil {
				return err
			}
			var got []string
			for _, g := range groups {
				for _, m := range g.Meters {
					got = append(got, fmt.Sprint(m.Meter, " ", m.Nodes, " ", m.Energy, " ", m.Error))
				}
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("%s: %q, want %q", what, got, c.want)
			}
		}
		return nil
	})
}
