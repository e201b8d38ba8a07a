package wire_test

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

func encode(t interface{ Fatal(...any) }, b *batch.Batch) []byte {
	sent, err := wire.Encode(nil, b)
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

func decode(t interface{ Fatal(...any) }, sent []byte) *batch.Batch {
	b, err := wire.Decode(sent, wire.Default())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// amount draws amounts, the extreme ones often.
var amount = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(math.MaxInt64)), rapid.Int64Range(0, 1<<20), rapid.Int64Range(0, math.MaxInt64))

func drawUsage(t *rapid.T, label string) (u usage.Usage) {
	u.Present = usage.Set(rapid.Uint64().Draw(t, label)) & usage.Metered
	u.Covered = time.Duration(amount.Draw(t, "covered"))
	u.Present.Each(func(r usage.Resource) {
		u.Amount[r] = amount.Draw(t, "amount")
		u.Quality.Set(r, usage.Quality(rapid.IntRange(0, 3).Draw(t, "quality")))
	})
	return u
}

func drawRow(t *rapid.T) usage.Row {
	r := usage.Row{ShortID: workload.ShortID(rapid.Uint64Range(0, 8).Draw(t, "workload") << 60), Usage: drawUsage(t, "row"),
		Ended: rapid.Bool().Draw(t, "ended")}
	if rapid.Bool().Draw(t, "totals") {
		r.Has = usage.Set(rapid.Uint64().Draw(t, "has")) & usage.Metered
		r.Has.Each(func(res usage.Resource) { r.Total[res] = amount.Draw(t, "total") })
	}
	return r
}

func drawWindows(t *rapid.T) (list []usage.Window) {
	end, boot := int64(0), "a"
	for range rapid.IntRange(0, 5).Draw(t, "windows") {
		if rapid.IntRange(0, 3).Draw(t, "reboot") == 0 {
			end, boot = 0, rapid.StringN(0, 10, 40).Filter(noNUL).Draw(t, "boot")
			if len(list) > 0 && list[len(list)-1].Boot == boot {
				boot += "'"
			}
		}
		w := usage.Window{Boot: boot, Start: end + rapid.Int64Range(0, 1<<40).Draw(t, "start"), StartReason: usage.StartReason(rapid.IntRange(0, 3).Draw(t, "opening")),
			CPUs: rapid.IntRange(0, 1<<20).Draw(t, "cpus"), Offset: rapid.Int64Range(-1<<62, 1<<62).Draw(t, "offset"), Total: drawUsage(t, "machine")}
		end = w.Start + rapid.Int64Range(0, 1<<40).Draw(t, "length")
		w.End = end
		any := rapid.Int64()
		if rapid.Bool().Draw(t, "balance") {
			b := &w.Balance
			for i := range usage.Wholes {
				b.Whole[i], b.Workloads[i], b.System[i] = any.Draw(t, "whole"), any.Draw(t, "workloads"), any.Draw(t, "system")
				b.Idle[i], b.Skew[i] = any.Draw(t, "idle"), any.Draw(t, "skew")
			}
			b.Violations, b.Lost = any.Draw(t, "violations"), any.Draw(t, "lost")
		}
		for range rapid.IntRange(0, 3).Draw(t, "handovers") {
			w.Handovers = append(w.Handovers, drawHandover(t))
		}
		for range rapid.IntRange(0, 6).Draw(t, "rows") {
			w.Rows = append(w.Rows, drawRow(t))
		}
		list = append(list, w)
	}
	return list
}

func noNUL(s string) bool { return !strings.Contains(s, "\x00") }

func drawTime(t *rapid.T) time.Time {
	if rapid.Bool().Draw(t, "no time") {
		return time.Time{}
	}
	return time.Unix(0, rapid.Int64Range(math.MinInt64+2e9, math.MaxInt64-2e9).Filter(func(ns int64) bool { return ns != 0 }).Draw(t, "time")).UTC()
}

func drawName(t *rapid.T) batch.Name {
	text := rapid.StringN(0, 40, 200).Filter(noNUL)
	id := func() workload.ID {
		return workload.NewID("node", workload.Pod, text.Draw(t, "id"))
	}
	n := batch.Name{ID: id(), Kind: workload.Kind(rapid.IntRange(0, int(workload.Job)).Draw(t, "kind")),
		Key: text.Draw(t, "key"), Name: text.Draw(t, "name"), Path: text.Draw(t, "path"), Job: text.Draw(t, "job"), User: text.Draw(t, "user"),
		Project: text.Draw(t, "project"), Started: drawTime(t), Ended: drawTime(t)}
	if rapid.Bool().Draw(t, "has parent") {
		n.Parent = id()
	}
	if rapid.Bool().Draw(t, "exited") {
		code := rapid.IntRange(-128, 255).Draw(t, "exit")
		n.Exit = &code
	}
	n.Labels = rapid.MapOfN(text, text, 0, 4).Draw(t, "labels")
	return n
}

func drawBatch(t *rapid.T) *batch.Batch {
	b := &batch.Batch{Number: rapid.Uint64().Draw(t, "number"), Windows: drawWindows(t)}
	copy(b.Stream[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "stream"))
	if rapid.Bool().Draw(t, "has previous") {
		b.Previous = batch.HashOf(b.Stream[:])
	}
	for range rapid.IntRange(0, 3).Draw(t, "names") {
		b.Names = append(b.Names, drawName(t))
	}
	for range rapid.IntRange(0, 3).Draw(t, "gaps") {
		b.Gaps = append(b.Gaps, usage.Gap{From: drawTime(t), To: drawTime(t), Reason: usage.Reason(rapid.IntRange(0, int(usage.Refused)).Draw(t, "reason")),
			Detail: rapid.StringN(0, 20, 80).Filter(noNUL).Draw(t, "detail")})
	}
	return b
}

// TestRoundTrip checks that Decode returns every batch that Encode encodes, and that
// the same batch gives the same bytes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawBatch(t)
		for i := range want.Windows {
			for range rapid.IntRange(0, 3).Draw(t, "volumes") {
				text := rapid.StringN(0, 10, 40).Filter(noNUL)
				want.Windows[i].Volumes = append(want.Windows[i].Volumes, usage.VolumeUse{Pod: text.Draw(t, "pod"), Volume: text.Draw(t, "volume"), Used: amount.Draw(t, "used"), Size: amount.Draw(t, "size"),
					At: rapid.Int64Range(want.Windows[i].Start, want.Windows[i].End).Draw(t, "at")})
			}
		}
		sent := encode(t, want)
		got := decode(t, sent)
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("came back different (-want +got):\n%s", d)
		}
		again, err := wire.Encode([]byte("before"), got)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, append([]byte("before"), sent...)) {
			t.Error("the same batch gives other bytes")
		}
	})
}

// TestAbsentMeansNothing checks that the amounts of absent resources do not change the
// bytes.
func TestAbsentMeansNothing(t *testing.T) {
	b, _ := newMachine(3, 10).batch(3)
	want := encode(t, b)
	for i := range b.Windows {
		for j := range b.Windows[i].Rows {
			row := &b.Windows[i].Rows[j]
			(usage.All &^ row.Usage.Present).Each(func(r usage.Resource) {
				row.Usage.Amount[r], row.Total[r] = 77, 77
				row.Usage.Quality.Set(r, usage.Modelled)
			})
		}
	}
	if !bytes.Equal(encode(t, b), want) {
		t.Error("amounts of what is absent change what is sent")
	}
}

func TestTextNeverStopsABatch(t *testing.T) {
	labels := map[string]string{}
	for i := range 100 {
		labels[strings.Repeat("k", i)] = "v"
	}
	b := decode(t, encode(t, &batch.Batch{Names: []batch.Name{{
		ID: workload.NewID("n", workload.Path, "p"), Path: "/a\xffb\x00c", Name: strings.Repeat("ä", 4000), Labels: labels,
	}}}))
	n := &b.Names[0]
	many := usage.Window{Volumes: make([]usage.VolumeUse, wire.Default().Volumes)}
	many.Volumes[0].Used, many.Volumes[1].Used = 1, 2
	v := decode(t, encode(t, &batch.Batch{Windows: []usage.Window{many, {Volumes: []usage.VolumeUse{{Pod: "a\xff", Volume: strings.Repeat("ä", 4000), Used: -1}}}}})).Windows
	if last := v[1].Volumes; len(v[0].Volumes) != wire.Default().Volumes-1 || v[0].Volumes[0].Used != 2 || len(last) != 1 || last[0] != (usage.VolumeUse{Pod: "a\uFFFD", Volume: strings.Repeat("ä", 2048)}) {
		t.Errorf("%d volumes, and %+v", len(v[0].Volumes), last)
	}
	if n.Path != "/a\uFFFDb\uFFFDc" || n.Name != strings.Repeat("ä", 2048) || len(n.Labels) != 32 {
		t.Errorf("path %q, name of %d bytes, %d labels", n.Path, len(n.Name), len(n.Labels))
	}
}

func TestEncodeRefuses(t *testing.T) {
	id := workload.NewID("n", workload.Path, "p")
	for _, tt := range []struct {
		name batch.Name
		want string
	}{
		{batch.Name{ID: "x"}, `batch 0: name 0: id "x" is malformed: invalid`},
		{batch.Name{ID: id, Parent: id[:25] + "b"}, "is malformed: invalid"},
		{batch.Name{ID: id, Ended: time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)}, "batch 0: name 0: ended: time 2300"},
	} {
		dst, err := wire.Encode([]byte("x"), &batch.Batch{Names: []batch.Name{tt.name}})
		if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tt.want) || string(dst) != "x" {
			t.Errorf("%q, error %v, want %s", dst, err, tt.want)
		}
	}
}

func benchEncode(b *testing.B, rows, windows int) {
	bt, samples := newMachine(1, rows).batch(windows)
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = wire.Encode(dst[:0], bt); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(samples)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

func benchDecode(b *testing.B, rows, windows int) {
	bt, samples := newMachine(1, rows).batch(windows)
	sent := encode(b, bt)
	b.ReportAllocs()
	for b.Loop() {
		decode(b, sent)
	}
	b.ReportMetric(float64(samples)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

func TestSizeOf(t *testing.T) {
	b := encode(t, &batch.Batch{Number: 1, Gaps: []usage.Gap{{Detail: strings.Repeat("x", 1000)}}})
	if n := wire.ExpandedSize(b); n < 1000 || n > 1200 || len(b) > 500 {
		t.Errorf("%d bytes say that they are %d, want some 1000", len(b), n)
	}
	for _, bad := range [][]byte{nil, []byte("batch"), b[:3]} {
		if n := wire.ExpandedSize(bad); n != 0 {
			t.Errorf("Size(%q) = %d", bad, n)
		}
	}
}

// How full a spool is survives a header; what else is there says nothing.
func TestSpool(t *testing.T) {
	if a, b, ok := wire.ParseSpool(wire.FormatSpool(5, 1<<40)); a != 5 || b != 1<<40 || !ok {
		t.Errorf("%d of %d, %v", a, b, ok)
	}
	if a, b, ok := wire.ParseSpool("0/1"); a != 0 || b != 1 || !ok {
		t.Errorf("%d of %d, %v", a, b, ok)
	}
	for _, s := range []string{"", "5", "5/", "/5", "-1/5", "5/0", "5/-5", "5/5/5", "a/b", "99999999999999999999/5"} {
		if a, b, ok := wire.ParseSpool(s); ok {
			t.Errorf("%q is %d of %d", s, a, b)
		}
	}
}
