package replica

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// A position is that of a cursor and of one offer: with any other offer, or changed, it is none, so
// that everything is sent again.
func TestPosition(t *testing.T) {
	offers := []replica.Offer{{Finest: replica.Minute}, {Finest: replica.Hour}, {Finest: replica.Minute, Masked: true}}
	c := cursor{rev: 7, kind: kindHour, a: 29_000_000, b: schema.Key(5, 3)}
	for _, o := range offers {
		text := formatPosition(o, "EPOCH", c)
		for _, p := range offers {
			epoch, got, ok := parsePosition(p, text)
			if ok != (o == p) || ok && (epoch != "EPOCH" || got != c) {
				t.Errorf("%s with offer %+v: %s, %+v, %t", text, p, epoch, got, ok)
			}
		}
		for i := range strings.Split(text, ".") {
			for _, other := range []string{"", "x", "-", "01", "9223372036854775808"} {
				f := strings.Split(text, ".")
				if f[i] = other; i == 0 {
					continue // any epoch is compared later
				}
				if _, _, ok := parsePosition(o, strings.Join(f, ".")); ok {
					t.Errorf("%q is a position", strings.Join(f, "."))
				}
			}
		}
		for _, bad := range []string{"", text + ".", text + ".1", "." + text, text[:strings.LastIndex(text, ".")]} {
			if _, _, ok := parsePosition(o, bad); ok {
				t.Errorf("%q is a position", bad)
			}
		}
	}
}

// Records are in the order of revision, kind, minute and key.
func TestCursorOrder(t *testing.T) {
	var all []cursor
	for _, rev := range []int64{1, 2} {
		for _, kind := range []recordKind{kindNode, kindEnd} {
			for _, a := range []int64{-1, 5} {
				for _, b := range []int64{0, 9} {
					all = append(all, cursor{rev, kind, a, b})
				}
			}
		}
	}
	for i, a := range all {
		for j, b := range all {
			if got := a.compare(b); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%+v and %+v: %d", a, b, got)
			}
		}
	}
	f := &pageBuilder{from: cursor{3, kindGap, 4, 6}}
	for kind, want := range map[recordKind]string{
		kindNode: "3 9223372036854775807 9223372036854775807", kindGap: "3 4 6", kindShift: "3 -1 -1",
	} {
		rev, a, b := f.startAfter(kind)
		if got := fmt.Sprint(rev, a, b); got != want {
			t.Errorf("kind %d starts after %s, want %s", kind, got, want)
		}
	}
}

// A page has the first records only, and up to their last revision.
func TestTruncate(t *testing.T) {
	// Records of which none is cut stay in their order.
	for limit, want := range map[int]string{1: "[1] true 1", 2: "[1 2] true 2", 3: "[4 1 2] false 9", 4: "[4 1 2] false 9"} {
		f := &pageBuilder{limit: limit, last: 9, records: []record{{at: cursor{rev: 4}}, {at: cursor{rev: 1}}, {at: cursor{rev: 2}}}}
		f.truncate()
		var revs []int64
		for _, r := range f.records {
			revs = append(revs, r.at.rev)
		}
		if got := fmt.Sprint(revs, f.truncated, f.last); got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
	}
}

// Connections count for four records, and at least one is in a page.
func TestTruncateConnections(t *testing.T) {
	at := func(kind recordKind, rev int64) record { return record{at: cursor{rev: rev, kind: kind}} }
	for limit, want := range map[int]string{1: "[1] true 1", 4: "[1] true 1", 7: "[1] true 1", 8: "[1 2] true 2", 9: "[1 2 3] false 9"} {
		f := &pageBuilder{limit: limit, last: 9, records: []record{at(kindConnections, 1), at(kindConnections, 2), at(kindNode, 3)}}
		f.truncate()
		var revs []int64
		for _, r := range f.records {
			revs = append(revs, r.at.rev)
		}
		if got := fmt.Sprint(revs, f.truncated, f.last); got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
	}
	one := &pageBuilder{limit: 1, last: 9, records: []record{at(kindConnections, 2)}}
	if one.truncate(); len(one.records) != 1 || one.truncated {
		t.Errorf("of one: %+v", one)
	}
}

// A row of minutes or hours may hold an hour or a day.
func TestHeldLevel(t *testing.T) {
	values := func(flags int64) []int64 {
		v := slices.Repeat([]int64{0}, schema.ColRest)
		v[schema.ColUncertainty] = flags | 1<<9
		return v
	}
	for _, c := range []struct {
		level replica.Resolution
		flags int64
		want  replica.Resolution
	}{
		{replica.Minute, 0, replica.Minute}, {replica.Minute, schema.HoldsHour, replica.Hour}, {replica.Minute, schema.HoldsDay, replica.Day},
		{replica.Minute, schema.HoldsHour | schema.HoldsDay, replica.Day}, {replica.Hour, schema.HoldsHour, replica.Hour}, {replica.Hour, schema.HoldsDay, replica.Day},
		{replica.Day, schema.HoldsHour | schema.HoldsDay, replica.Day},
	} {
		if got := heldLevel(c.level, values(c.flags)); got != c.want {
			t.Errorf("level %d with flags %d holds %d, want %d", c.level, c.flags, got, c.want)
		}
	}
}

// A position is resumed only if it is of this ledger, up to its revision. A ledger that went back gives the
// same revisions again for other rows.
func TestResume(t *testing.T) {
	d, err := db.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), true, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	var rev int64
	if err := d.Write(t.Context(), func(x *db.Tx) error { rev = x.Rev; return nil }); err != nil {
		t.Fatal(err)
	}
	at := func(rev int64) cursor { return cursor{rev, kindGap, 4, 6} }
	err = d.View(t.Context(), func(v *db.View) error {
		epoch, err := v.EpochOf(rev)
		if err != nil {
			return err
		}
		for name, c := range map[string]struct {
			text string
			want cursor
		}{
			"present":        {formatPosition(replica.Offer{}, epoch, at(rev)), at(rev)},
			"later":          {formatPosition(replica.Offer{}, epoch, at(rev+1)), cursor{}},
			"other ledger":   {formatPosition(replica.Offer{}, "other", at(rev)), cursor{}},
			"not a position": {"x", cursor{}},
		} {
			if got, err := resume(v, replica.Offer{}, c.text, rev); got != c.want || err != nil {
				t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
