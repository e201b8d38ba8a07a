package wire_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	pb "mete.dev/mete/proto"
)

// respell decodes the message of a batch, changes it, and puts it into a frame.
func respell(t *testing.T, b *batch.Batch, change func(m *pb.Batch)) []byte {
	t.Helper()
	var m pb.Batch
	if err := proto.Unmarshal(content(t, encode(t, b)), &m); err != nil {
		t.Fatal(err)
	}
	change(&m)
	raw, err := proto.MarshalOptions{AllowPartial: true}.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	return frame(t, raw)
}

// TestDefaultLimits checks the limits that docs/formats/wire.md promises to those who write another
// agent.
func TestDefaultLimits(t *testing.T) {
	want := wire.Limits{Sent: 4 << 20, Size: 8 << 20, Windows: 4096, Rows: 100_000, Names: 10_000, Gaps: 4096, Labels: 32, Text: 4096, Name: 8192, Handovers: 20_000, Shares: 400_000, Volumes: 20_000, Edges: 200_000}
	if d := cmp.Diff(want, wire.Default()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := wire.BaseFormat(); got != (wire.Format{Layout: 1, Resource: 30}) {
		t.Errorf("the first servers read %v", got)
	}
}

// TestDecodeLimits decodes a batch with exactly what the limits allow, and with one less of each.
func TestDecodeLimits(t *testing.T) {
	b := handed(1, 2, 3) // 2 guests in 3 windows, 10 shares each and one before them
	for i, labels := range []map[string]string{{"a": "b", "c": "d", "e": "f"}, {"g": "h"}} {
		b.Names = append(b.Names, batch.Name{ID: workload.NewID("n", workload.Pod, fmt.Sprint(i)), Kind: workload.Pod, Labels: labels})
	}
	b.Gaps = []usage.Gap{{Detail: strings.Repeat("x", 100)}, {}, {}, {}}
	for i := range b.Windows {
		b.Windows[i].Rows = []usage.Row{{ShortID: 1}, {ShortID: 2, Connections: talking().Windows[1].Rows[0].Connections}}
		b.Windows[i].Volumes = []usage.VolumeUse{{Volume: "a"}, {Volume: "b"}}
	}
	sent := encode(t, b)
	exact := wire.Limits{Sent: len(sent), Size: len(content(t, sent)), Windows: 3, Rows: 6, Names: 2, Gaps: 4, Labels: 3, Text: 100, Name: 1000, Handovers: 6, Shares: 62, Volumes: 6, Edges: 6}
	if _, err := wire.Decode(sent, exact); err != nil {
		t.Errorf("exactly what is allowed: %v", err)
	}
	for name, limit := range map[string]*int{
		"bytes": &exact.Sent, "bytes in the frame": &exact.Size, "windows": &exact.Windows, "rows": &exact.Rows, "names": &exact.Names, "gaps": &exact.Gaps,
		"labels": &exact.Labels, "bytes of a text": &exact.Text, "handovers": &exact.Handovers, "shares": &exact.Shares, "volumes": &exact.Volumes, "edges": &exact.Edges,
	} {
		*limit--
		if _, err := wire.Decode(sent, exact); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("fewer %s: %v, want fault.ErrInvalid", name, err)
		}
		*limit++
	}
	// Other limits than that of all labels together find many labels of one name.
	exact.Labels, exact.Names = 2, 3
	if _, err := wire.Decode(sent, exact); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("3 labels of one name, and 4 of at most 6: %v, want fault.ErrInvalid", err)
	}
}

// TestDecodeCounts checks how often a batch and a page may have each message before memory is given to
// it.
func TestDecodeCounts(t *testing.T) {
	message := func(number protowire.Number, times int) []byte {
		var b []byte
		for range times {
			b = protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), nil)
		}
		return b
	}
	in := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	l := wire.Limits{Sent: 1 << 20, Size: 1 << 20, Windows: 5, Rows: 6, Names: 7, Gaps: 8, Labels: 9, Text: 10, Name: 11, Handovers: 12, Shares: 13, Volumes: 14, Edges: 15}
	for _, c := range []struct {
		name  string
		raw   func(n int) []byte // with n messages
		most  int
		pages bool
	}{
		{"names", func(n int) []byte { return message(5, n) }, 7, false},
		{"labels", func(n int) []byte { return in(5, message(12, n)) }, 63, false},
		{"gaps", func(n int) []byte { return message(6, n) }, 8, false},
		{"windows", func(n int) []byte { return message(8, n) }, 5, false},
		{"tables", func(n int) []byte { return message(9, n) }, 2, false},
		{"balances", func(n int) []byte { return message(11, n) }, 1, false},
		{"handovers", func(n int) []byte { return message(12, n) }, 1, false},
		{"volumes", func(n int) []byte { return message(13, n) }, 14, false},
		{"connections", func(n int) []byte { return message(14, n) }, 1, false},
		{"guests", func(n int) []byte { return in(12, message(1, n)) }, 12, false},
		{"shapes", func(n int) []byte { return in(9, message(3, n)) }, 6, false},
		{"columns", func(n int) []byte { return in(9, message(5, n)) }, 2 * usage.Limit, false},
		{"nodes", func(n int) []byte { return message(5, n) }, 7, true},
		{"hosts", func(n int) []byte { return in(5, message(12, n)) }, 7, true},
		{"workloads", func(n int) []byte { return message(6, n) }, 7, true},
		{"names of workloads", func(n int) []byte { return in(6, message(4, n)) }, 7, true},
		{"labels of workloads", func(n int) []byte { return in(6, in(4, message(12, n))) }, 63, true},
		{"tables of states", func(n int) []byte { return message(7, n) }, 6, true},
		{"columns of states", func(n int) []byte { return in(8, message(7, n)) }, 384, true},
		{"gaps of states", func(n int) []byte { return message(9, n) }, 8, true},
		{"content of gaps", func(n int) []byte { return in(9, message(2, n)) }, 8, true},
		{"shifts", func(n int) []byte { return message(10, n) }, 8, true},
		{"nestings", func(n int) []byte { return message(11, n) }, 7, true},
		{"connections of states", func(n int) []byte { return message(13, n) }, 1, true},
		{"edges of states", func(n int) []byte { return in(13, message(3, n)) }, 1, true},
	} {
		tooMany := func(n int) bool {
			sent := frame(t, c.raw(n))
			_, err := wire.Decode(sent, l)
			if c.pages {
				_, err = wire.DecodeStates(sent, l)
			}
			return err != nil && strings.Contains(err.Error(), "too many of ")
		}
		if tooMany(c.most) || !tooMany(c.most+1) {
			t.Errorf("%s: %d are too many %t, %d %t", c.name, c.most, tooMany(c.most), c.most+1, tooMany(c.most+1))
		}
	}
}

// TestDecodeWindowLimits checks the first and last stamps of windows that can be decoded.
func TestDecodeWindowLimits(t *testing.T) {
	text := strings.Repeat("b", 4096)
	for _, c := range []struct {
		name   string
		change func(m *pb.Window)
		ok     bool
	}{
		{"from 0, of no length", func(m *pb.Window) { m.Start, m.Length = 0, 0 }, true},
		{"from -1", func(m *pb.Window) { m.Start = -1 }, false},
		{"up to the end of time", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, math.MaxInt64-5, 0 }, true},
		{"beyond it", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, math.MaxInt64-4, 0 }, false},
		{"longest", func(m *pb.Window) { m.Start, m.Length, m.Offset = 0, math.MaxInt64, 0 }, true},
		{"longer", func(m *pb.Window) { m.Start, m.Length, m.Offset = 0, math.MaxInt64+1, 0 }, false},
		{"of negative length", func(m *pb.Window) { m.Start, m.Length, m.Offset = 9, math.MaxUint64, 0 }, false},
		{"wall time at its end", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, 5, math.MaxInt64-10 }, true},
		{"wall time beyond its end", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, 5, math.MaxInt64-9 }, false},
		{"wall time at its end, with a clock that is right", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, math.MaxInt64-5, 1 }, false},
		{"wall time at its beginning", func(m *pb.Window) { m.Start, m.Length, m.Offset = 5, 5, math.MinInt64 }, true},
		{"last reason", func(m *pb.Window) { m.Opening = pb.Opening_OPENING_BOOTED }, true},
		{"unknown reason", func(m *pb.Window) { m.Opening = pb.Opening_OPENING_BOOTED + 1 }, false},
		{"negative reason", func(m *pb.Window) { m.Opening = -1 }, false},
		{"most CPUs", func(m *pb.Window) { m.Cpus = math.MaxInt32 }, true},
		{"more CPUs", func(m *pb.Window) { m.Cpus = math.MaxInt32 + 1 }, false},
		{"longest boot id", func(m *pb.Window) { m.Boot = &text }, true},
		{"longer boot id", func(m *pb.Window) { long := text + "b"; m.Boot = &long }, false},
		{"boot id with a NUL", func(m *pb.Window) { nul := "\x00"; m.Boot = &nul }, false},
	} {
		sent := respell(t, &batch.Batch{Windows: []usage.Window{{Boot: "b", End: 5}}}, func(m *pb.Batch) { c.change(m.Windows[0]) })
		if _, err := wire.Decode(sent, wire.Default()); (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for from, ok := range map[int64]bool{0: true, -1: false} { // counted from the end of the window before
		sent := respell(t, &batch.Batch{Windows: []usage.Window{{Boot: "b", End: 5}, {Boot: "b", Start: 5, End: 9}}}, func(m *pb.Batch) { m.Windows[1].Start = from })
		if _, err := wire.Decode(sent, wire.Default()); (err == nil) != ok {
			t.Errorf("a window that begins %d ns after the previous one ended: %v", from, err)
		}
	}
}

// TestDecodeRowLimits checks the number of rows for which columns have to be complete, the places of
// workloads, and how long a row may be without readings.
func TestDecodeRowLimits(t *testing.T) {
	b := func() *batch.Batch {
		rows := []usage.Row{{ShortID: 3}, {ShortID: 5}}
		rows[0].Usage.Covered, rows[1].Usage.Covered = 4, 10 // of 10
		return &batch.Batch{Windows: []usage.Window{{Boot: "b", End: 10, Rows: rows}}}
	}
	for _, c := range []struct {
		name   string
		change func(m *pb.Batch)
		ok     bool
	}{
		{"as it is", func(*pb.Batch) {}, true},
		{"never read", func(m *pb.Batch) { m.Rows.Uncovered[0] = 10 }, true},
		{"longer than its window", func(m *pb.Batch) { m.Rows.Uncovered[0] = 11 }, false},
		{"the same row twice", func(m *pb.Batch) { m.Rows.Workload[1] = -1 }, true},
		{"the other way round", func(m *pb.Batch) { m.Rows.Workload[0], m.Rows.Workload[1] = 1, -2 }, true},
		{"before the first workload", func(m *pb.Batch) { m.Rows.Workload[1] = -2 }, false},
		{"after the last one", func(m *pb.Batch) { m.Rows.Workload[1] = 1 }, false},
		{"workloads that are alike", func(m *pb.Batch) { m.Workloads[1] = 3 }, false},
		{"as many workloads as rows", func(m *pb.Batch) { m.Workloads = []uint64{1, 2} }, true},
		{"more workloads than rows", func(m *pb.Batch) { m.Workloads = []uint64{1, 2, 3} }, false},
		{"last shape", func(m *pb.Batch) { m.Rows.Shape[1], m.Rows.Uncovered = 1, nil; m.Rows.Shape[0] = 1 }, true},
		{"after the last shape", func(m *pb.Batch) { m.Rows.Shape[1] = 2 }, false},
	} {
		_, err := wire.Decode(respell(t, b(), c.change), wire.Default())
		if (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// TestDecodeBroken checks messages that cannot be read: a text that is not UTF-8, and a field that ends
// after the message.
func TestDecodeBroken(t *testing.T) {
	name := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte("\xff"))
	for what, raw := range map[string][]byte{
		"text":                protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), name),
		"field":               protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.BytesType), 9),
		"field of no message": protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), 9),
		"tag":                 {0x80},
	} {
		if _, err := wire.Decode(frame(t, raw), wire.Default()); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want fault.ErrInvalid", what, err)
		}
		if _, err := wire.DecodeStates(frame(t, raw), wire.Default()); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s in a page: %v, want fault.ErrInvalid", what, err)
		}
	}
	for _, sent := range [][]byte{nil, []byte("Batch"), frame(t, make([]byte, 100), zstd.WithSingleSegment(false))} {
		if _, err := wire.Decode(sent, wire.Default()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "content's size") {
			t.Errorf("%q: %v", sent, err)
		}
	}
	// The rest of the message is sound.
	detail := protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), []byte("\xff"))
	raw := protowire.AppendBytes(protowire.AppendTag(content(t, encode(t, small())), 6, protowire.BytesType), detail)
	if _, err := wire.Decode(frame(t, raw), wire.Default()); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("text in a gap: %v, want fault.ErrInvalid", err)
	}
	page, err := wire.EncodeStates(nil, &replica.Page{To: "there"})
	if err != nil {
		t.Fatal(err)
	}
	raw = protowire.AppendBytes(protowire.AppendTag(content(t, page), 9, protowire.BytesType), protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), detail))
	if _, err := wire.DecodeStates(frame(t, raw), wire.Default()); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("text in a gap of a page: %v, want fault.ErrInvalid", err)
	}
}

// TestTimes checks the first and last times that can be encoded.
func TestTimes(t *testing.T) {
	const most = math.MaxInt64/1_000_000_000 - 1
	for _, c := range []struct {
		at time.Time
		ok bool
	}{
		{time.Time{}, true}, {time.Unix(0, 1), true}, {time.Unix(most, 999_999_999), true}, {time.Unix(most+1, 0), false},
		{time.Unix(-most, 0), true}, {time.Unix(-most-1, 999_999_999), false},
	} {
		id := workload.NewID("n", workload.Path, "p")
		for what, b := range map[string]*batch.Batch{
			"start": {Names: []batch.Name{{ID: id, Started: c.at}}}, "end": {Names: []batch.Name{{ID: id, Ended: c.at}}},
			"gap from": {Gaps: []usage.Gap{{From: c.at}}}, "gap to": {Gaps: []usage.Gap{{To: c.at}}},
		} {
			sent, err := wire.Encode([]byte("x"), b)
			if (err == nil) != c.ok || err != nil && (!errors.Is(err, fault.ErrInvalid) || string(sent) != "x") {
				t.Errorf("%s at %v: %q, %v", what, c.at, sent, err)
			}
			if err != nil {
				continue
			}
			got := decode(t, sent[1:])
			var at time.Time
			switch what {
			case "start":
				at = got.Names[0].Started
			case "end":
				at = got.Names[0].Ended
			case "gap from":
				at = got.Gaps[0].From
			case "gap to":
				at = got.Gaps[0].To
			}
			if !at.Equal(c.at) {
				t.Errorf("%s at %v is read as %v", what, c.at, at)
			}
		}
	}
}

// TestCut checks where texts are cut: at the start of a character.
func TestCut(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{strings.Repeat("x", 4096), strings.Repeat("x", 4096)},
		{strings.Repeat("x", 4097), strings.Repeat("x", 4096)},
		{"x" + strings.Repeat("ä", 2048), "x" + strings.Repeat("ä", 2047)},
		{"xx" + strings.Repeat("ä", 2048), "xx" + strings.Repeat("ä", 2047)},
		{"x" + strings.Repeat("€", 1365), "x" + strings.Repeat("€", 1365)},
		{"xx" + strings.Repeat("€", 1365), "xx" + strings.Repeat("€", 1364)},
	} {
		b := decode(t, encode(t, &batch.Batch{Gaps: []usage.Gap{{Detail: c.text}}}))
		if got := b.Gaps[0].Detail; got != c.want {
			t.Errorf("%.5q of %d bytes is cut to %d, want %d", c.text, len(c.text), len(got), len(c.want))
		}
	}
	// Eight characters of four bytes each leave no byte of a character that does not fit.
	n := batch.Name{ID: workload.NewID("n", workload.Path, "p"), Key: strings.Repeat("𝄞", 1024), Name: strings.Repeat("𝄞", 1023) + "xx", Job: "𝄞", User: "y"}
	got := decode(t, encode(t, &batch.Batch{Names: []batch.Name{n}})).Names[0]
	if got.Key != n.Key || got.Name != n.Name || got.Job != "" || got.User != "y" {
		t.Errorf("key of %d bytes, name of %d, job %q, user %q", len(got.Key), len(got.Name), got.Job, got.User)
	}
}

// TestLabelsThatFit checks which labels are kept within 8 KiB of a name: Kubernetes's own first, others
// in the order of their keys, and a later one if it fits where an earlier one does not.
func TestLabelsThatFit(t *testing.T) {
	id := workload.NewID("n", workload.Path, "p")
	for _, c := range []struct {
		room int // bytes that the labels have
		want string
	}{
		{7, "io.kubernetes.x"}, {6, "a c"}, {-6, ""}, {12, "b io.kubernetes.x"}, {11, "c io.kubernetes.x"}, {15, "b c io.kubernetes.x"}, {17, "a io.kubernetes.x"}, {25, "a b c io.kubernetes.x"},
	} {
		labels := map[string]string{"a": strings.Repeat("x", 9), "b": "1234", "c": "12", "io.kubernetes.x": ""}
		n := batch.Name{ID: id, Key: strings.Repeat("k", 4096), Name: strings.Repeat("n", 4096-c.room-8), Labels: labels}
		got := decode(t, encode(t, &batch.Batch{Names: []batch.Name{n}})).Names[0]
		var keys []string
		for _, key := range []string{"a", "b", "c", "io.kubernetes.x"} {
			if v, ok := got.Labels[key]; ok {
				keys = append(keys, key)
				if v != labels[key] {
					t.Errorf("label %s is %q", key, v)
				}
			}
		}
		if g := strings.Join(keys, " "); g != c.want || (len(keys) == 0) != (got.Labels == nil) {
			t.Errorf("room for %d bytes: %v, want %s", c.room, got.Labels, c.want)
		}
	}
}

// TestShareLimits checks which shares are sent: those of an epoch with a name of up to 64 bytes, whose
// amounts are not negative and fit together.
func TestShareLimits(t *testing.T) {
	const uuid = "00112233-4455-6677-8899-aabbccddeeff"
	epoch := strings.Repeat("e", 64)
	for _, c := range []struct {
		share power.Share
		ok    bool
	}{
		{power.Share{Epoch: epoch}, true}, {power.Share{Epoch: epoch + "e"}, false}, {power.Share{}, false},
		{power.Share{Epoch: "e", N: -1}, false}, {power.Share{Epoch: "e", Active: -1}, false}, {power.Share{Epoch: "e", Idle: -1}, false},
		{power.Share{Epoch: "e", Active: math.MaxInt64 - 5, Idle: 5}, true}, {power.Share{Epoch: "e", Active: math.MaxInt64 - 5, Idle: 6}, false},
	} {
		h := usage.Handover{Guest: uuid, Workload: workload.NewID("n", workload.VM, uuid), Opened: c.share, Shares: []power.Share{c.share}}
		sent := wire.Prepare(&usage.Window{Boot: "b", Handovers: []usage.Handover{h}}).Handovers[0]
		if got := len(sent.Shares) == 1; got != c.ok || (sent.Opened == c.share) != (c.ok || c.share == power.Share{}) {
			t.Errorf("%+v: sent %+v", c.share, sent)
		}
		_, err := wire.Encode(nil, &batch.Batch{Windows: []usage.Window{{Boot: "b", Handovers: []usage.Handover{{Guest: uuid, Shares: h.Shares}}}}})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v", c.share, err)
		}
	}
	w := usage.Window{Boot: "b", Handovers: []usage.Handover{{Guest: uuid, Shares: []power.Share{{Epoch: epoch}}}}}
	if got := decode(t, encode(t, &batch.Batch{Windows: []usage.Window{w}})).Windows[0]; cmp.Diff(w.Handovers, got.Handovers) != "" {
		t.Errorf("the longest name of an epoch: %+v", got.Handovers)
	}
	if got := wire.Prepare(&usage.Window{Handovers: []usage.Handover{{Guest: uuid}}}).Handovers; len(got) != 1 || got[0].Shares != nil {
		t.Errorf("a guest without shares: %+v", got)
	}
}

// TestDecodeStatesTexts checks each text, number and part of a page that is refused.
func TestDecodeStatesTexts(t *testing.T) {
	long := strings.Repeat("x", 4097)
	id := workload.NewID("n", workload.Job, "k")
	short, _ := workload.ShortIDOf(id)
	page := func() *replica.Page {
		p := &replica.Page{From: replica.Mark{Sequence: 3, Position: "here"}, To: "there", Nodes: []replica.Node{{Node: registry.Node{ID: "n"}, Host: replica.Host{Node: "h"}}}}
		p.Workloads = []replica.Workload{{Short: short, Name: &batch.Name{ID: id, Kind: workload.Job}}}
		p.Gaps = []replica.Gap{{Gap: usage.Gap{Reason: usage.Rebooted}}}
		p.Shifts = []replica.Shift{{}}
		return p
	}
	decodePage := func(change func(m *pb.States)) error {
		sent, err := wire.EncodeStates(nil, page())
		if err != nil {
			t.Fatal(err)
		}
		var m pb.States
		if err := proto.Unmarshal(content(t, sent), &m); err != nil {
			t.Fatal(err)
		}
		change(&m)
		raw, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.DecodeStates(frame(t, raw), wire.Default())
		return err
	}
	for name, text := range map[string]func(m *pb.States) *string{
		"from": func(m *pb.States) *string { return &m.From }, "to": func(m *pb.States) *string { return &m.To },
		"node": func(m *pb.States) *string { return &m.Nodes[0].Id }, "cluster": func(m *pb.States) *string { return &m.Nodes[0].Cluster },
		"name of a node": func(m *pb.States) *string { return &m.Nodes[0].Name }, "machine id": func(m *pb.States) *string { return &m.Nodes[0].MachineId },
		"boot": func(m *pb.States) *string { return &m.Nodes[0].Boot }, "pool": func(m *pb.States) *string { return &m.Nodes[0].Pool },
		"host": func(m *pb.States) *string { return &m.Nodes[0].Host.Node }, "namespace": func(m *pb.States) *string { return &m.Workloads[0].Namespace },
		"pod": func(m *pb.States) *string { return &m.Workloads[0].Pod }, "container": func(m *pb.States) *string { return &m.Workloads[0].Container },
		"name": func(m *pb.States) *string { return &m.Workloads[0].Name.Name }, "detail of a gap": func(m *pb.States) *string { return &m.Gaps[0].Gap.Detail },
		"boot of a shift": func(m *pb.States) *string { return &m.Shifts[0].Boot },
	} {
		if err := decodePage(func(m *pb.States) { *text(m) = long[1:] }); err != nil {
			t.Errorf("%s of 4096 bytes: %v", name, err)
		}
		if err := decodePage(func(m *pb.States) { *text(m) = long }); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s of 4097 bytes: %v, want fault.ErrInvalid", name, err)
		}
	}
	for name, c := range map[string]struct {
		change func(m *pb.States)
		want   error
	}{
		"layout 2":                {func(m *pb.States) { m.Version = 2 }, nil},
		"layout 3":                {func(m *pb.States) { m.Version = 3 }, nil},
		"layout 4":                {func(m *pb.States) { m.Version = 4 }, wire.ErrNewer},
		"no layout":               {func(m *pb.States) { m.Version = 0 }, fault.ErrInvalid},
		"most CPUs":               {func(m *pb.States) { m.Nodes[0].Cpus = math.MaxInt32 }, nil},
		"more CPUs":               {func(m *pb.States) { m.Nodes[0].Cpus = math.MaxInt32 + 1 }, fault.ErrInvalid},
		"empty gap":               {func(m *pb.States) { m.Gaps[0].Gap = nil }, fault.ErrInvalid},
		"id of a name":            {func(m *pb.States) { m.Workloads[0].Name.Id = nil }, fault.ErrInvalid},
		"last level":              {func(m *pb.States) { m.Rows = []*pb.StateTable{{Level: 2}} }, nil},
		"no such node":            {func(m *pb.States) { m.Gaps[0].Node = 1 }, fault.ErrInvalid},
		"next level":              {func(m *pb.States) { m.Rows = []*pb.StateTable{{Level: 3}} }, fault.ErrInvalid},
		"as many hours":           {func(m *pb.States) { m.Connections = hours(100_000, 100_000) }, nil},
		"more hours":              {func(m *pb.States) { m.Connections = hours(100_001, 100_001) }, fault.ErrInvalid},
		"an hour of no workload":  {func(m *pb.States) { m.Connections = hours(2, 1) }, fault.ErrInvalid},
		"a workload without hour": {func(m *pb.States) { m.Connections = hours(1, 2) }, fault.ErrInvalid},
		"edges of the next hour": {func(m *pb.States) {
			m.Connections = hours(1, 1)
			m.Connections.Edges = &pb.Connections{Rows: []uint32{1}, Edges: []uint32{0}}
		}, fault.ErrInvalid},
	} {
		if err := decodePage(c.change); !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	// The largest time in ms that an int64 holds in ns.
	for ms, ok := range map[uint64]bool{math.MaxInt64 / 1_000_000: true, math.MaxInt64/1_000_000 + 1: false} {
		err := decodePage(func(m *pb.States) {
			m.Rows = []*pb.StateTable{{Minute: []int64{0}, Key: []uint32{0}, Present: []uint64{0}, Quality: []uint64{0}, Covered: []uint64{ms}}}
		})
		if (err == nil) != ok || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("covered for %d ms: %v", ms, err)
		}
	}
}

// hours returns connections of some hours and workloads, without edges.
func hours(hours, workloads int) *pb.StateConnections {
	return &pb.StateConnections{Minute: make([]int64, hours), Workload: make([]uint32, workloads)}
}

// TestEncodeStatesRefuses checks what of a page cannot be encoded.
func TestEncodeStatesRefuses(t *testing.T) {
	for name, p := range map[string]*replica.Page{
		"text": {To: "\xff"},
		"name": {Workloads: []replica.Workload{{Name: &batch.Name{ID: "x"}}}},
	} {
		if sent, err := wire.EncodeStates([]byte("x"), p); err == nil || string(sent) != "x" {
			t.Errorf("%s: %q, %v", name, sent, err)
		}
	}
	// A time that a sender stated keeps nothing from being sent.
	for _, far := range []time.Time{time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(0, math.MaxInt64), time.Unix(0, math.MinInt64)} {
		id := workload.NewID("n", workload.Pod, "p")
		short, _ := workload.ShortIDOf(id)
		sent, err := wire.EncodeStates(nil, &replica.Page{
			Nodes: []replica.Node{{Node: registry.Node{ID: "n"}}}, Gaps: []replica.Gap{{Gap: usage.Gap{From: far, To: far}}},
			Workloads: []replica.Workload{{Short: short, Name: &batch.Name{ID: id, Kind: workload.Pod, Started: far, Ended: far}}},
		})
		if err != nil {
			t.Errorf("%v: %v", far, err)
			continue
		}
		p, err := wire.DecodeStates(sent, wire.Default())
		if err != nil {
			t.Errorf("%v: %v", far, err)
			continue
		}
		for _, got := range []time.Time{p.Gaps[0].From, p.Workloads[0].Name.Started, p.Workloads[0].Name.Ended} {
			if got.Before(far) != (far.Year() > 2000) || got.Year() < 1680 || got.Year() > 2260 {
				t.Errorf("%v is sent as %v", far, got)
			}
		}
	}
}

// TestNewerKind checks that a kind of workload that only a newer program knows does not stop a batch.
func TestNewerKind(t *testing.T) {
	b := &batch.Batch{Names: []batch.Name{{ID: workload.NewID("n", workload.Pod, "p"), Kind: workload.Pod, Name: "pod"}}}
	for kind, want := range map[string]workload.Kind{"pod": workload.Pod, "unikernel": workload.Unknown} {
		got, err := wire.Decode(respell(t, b, func(m *pb.Batch) { m.Names[0].Kind = kind }), wire.Default())
		if err != nil || got.Names[0].Kind != want || got.Names[0].Name != "pod" {
			t.Errorf("kind %s: %+v, %v", kind, got, err)
		}
	}
}
