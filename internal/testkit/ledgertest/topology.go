package ledgertest

import (
	"errors"
	"maps"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/pod"
	"mete.dev/mete/internal/store/ledger"
)

// testTopology: the topology of a cluster is stored and read as it was, with an epoch that rises whenever it is booked, by the
// server with the lease only.
func testTopology(t *testing.T, dsn string) {
	ctx := t.Context()
	l := Open(t, dsn)
	lease := func(cluster string) pod.Lease {
		t.Helper()
		held, err := l.LeasePods(ctx, pod.Lease{Cluster: cluster, Holder: "a"}, Day, Day)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	old, d := lease("c"), lease("d")
	held := lease("c")
	one := pod.Topology{
		"n1":                     {Zone: "eu-1a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32"), netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")}},
		"n2":                     {Zone: "eu-1b"},
		"n3":                     {},
		strings.Repeat("n", 253): {Zone: "a\x00'\"\\<é", Prefixes: []netip.Prefix{netip.MustParsePrefix("fd00::7/128")}},
	}
	book := func(held pod.Lease, topology pod.Topology, now time.Time, want error) {
		t.Helper()
		if err := Try(t, func() error { return l.BookTopology(ctx, held, topology, now) }); !errors.Is(err, want) {
			t.Errorf("booking: %v, want %v", err, want)
		}
	}
	epochs := func(when string, want map[string]int64) {
		t.Helper()
		var got map[string]int64
		if err := Try(t, func() (err error) { got, err = l.TopologyEpochs(ctx); return err }); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: epochs %v, %v; want %v", when, got, err, want)
		}
	}
	reads := func(when, cluster string, want pod.Topology, wantEpoch int64) {
		t.Helper()
		var got pod.Topology
		var epoch int64
		err := Try(t, func() (err error) { got, epoch, err = l.Topology(ctx, cluster); return err })
		if !reflect.DeepEqual(got, want) || epoch != wantEpoch || err != nil {
			t.Errorf("%s: %v of epoch %d, %v; want %v of %d", when, got, epoch, err, want, wantEpoch)
		}
	}
	epochs("none is booked", map[string]int64{})
	if got, epoch, err := l.Topology(ctx, "c"); !errors.Is(err, fault.ErrNotFound) || got != nil || epoch != 0 {
		t.Errorf("none is booked: %v, %d, %v", got, epoch, err)
	}

	now := Day.Add(123456789 * time.Nanosecond)
	ms := now.UnixMilli()
	book(old, one, now, fault.ErrConflict)
	book(pod.Lease{Cluster: "other", Number: 1}, one, now, fault.ErrConflict)
	epochs("an old lease, and none", map[string]int64{})
	book(held, one, now, nil)
	reads("booked", "c", one, ms)
	book(held, one, now, nil)
	reads("the same in the same millisecond", "c", one, ms+1)
	two := pod.Topology{"n4": {Zone: "eu-1c"}}
	book(held, two, now.Add(-time.Hour), nil)
	reads("by a clock that was set back", "c", two, ms+2)
	book(held, pod.Topology{}, now.Add(time.Second), nil)
	reads("later, without nodes", "c", pod.Topology{}, ms+1000)
	book(d, two, now, nil)
	epochs("two clusters", map[string]int64{"c": ms + 1000, "d": ms})
	reads("the first cluster", "c", pod.Topology{}, ms+1000)
	reads("the second cluster", "d", two, ms)
	book(old, one, now.Add(time.Minute), fault.ErrConflict)
	reads("an old lease", "c", pod.Topology{}, ms+1000)

	many := pod.Topology{}
	for i := range 5000 {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0})
		many["node-"+a.String()] = pod.NodeNetwork{Zone: "eu-1a", Prefixes: []netip.Prefix{netip.PrefixFrom(a, 24)}}
	}
	book(held, many, now.Add(2*time.Second), nil)
	closeLedger(t, l)
	l = OpenWith(t, dsn, ledger.Default())
	reads("many nodes, after the ledger was opened again", "c", many, ms+2000)
	if findings, err := l.Check(ctx); err != nil || len(findings) > 0 {
		t.Errorf("check: %v, %v", findings, err)
	}
	if _, err := DB(t, dsn).ExecContext(ctx, "UPDATE topology SET content = '[' WHERE cluster = 'c'"); err != nil {
		t.Fatal(err)
	}
	if got, epoch, err := l.Topology(ctx, "c"); err == nil || errors.Is(err, fault.ErrNotFound) || got != nil || epoch != 0 {
		t.Errorf("damaged: %v, %d, %v", got, epoch, err)
	}
}
