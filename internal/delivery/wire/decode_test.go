package wire_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/klauspost/compress/zstd"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	pb "mete.dev/mete/proto"
)

var update = flag.Bool("update", false, "rewrite testdata")

// frame compresses a message as any agent may.
func frame(t testing.TB, raw []byte, options ...zstd.EOption) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true)}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return e.EncodeAll(raw, nil)
}

// content is what is in a frame.
func content(t testing.TB, sent []byte) []byte {
	t.Helper()
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	raw, err := d.DecodeAll(sent, nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func small() *batch.Batch {
	b, _ := newMachine(5, 6).batch(3)
	return b
}

// TestGolden checks that Decode reads the bytes of earlier versions.
func TestGolden(t *testing.T) {
	const file = "testdata/batch-1"
	want := small()
	if *update {
		if err := os.WriteFile(file, encode(t, want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	sent, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, decode(t, sent), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("%s reads differently (-want +got):\n%s", file, d)
	}
}

// plain is the column of a resource in which nothing is predicted.
func plain(b *batch.Batch, r pb.Resource) *pb.Column {
	c := &pb.Column{Resource: r}
	for i := range b.Windows {
		for _, row := range b.Windows[i].Rows {
			if row.Usage.Present>>r&1 != 0 {
				c.Values = append(c.Values, uint64(row.Usage.Amount[r]))
			}
		}
	}
	return c
}

// A plain agent predicts nothing.
func TestPlainValues(t *testing.T) {
	want := small()
	var m pb.Batch
	if err := proto.Unmarshal(content(t, encode(t, want)), &m); err != nil {
		t.Fatal(err)
	}
	m.Rows.Amounts = nil
	for r := pb.Resource_RESOURCE_CPU; int(r) < len(pb.Resource_name); r++ {
		m.Rows.Amounts = append(m.Rows.Amounts, plain(want, r))
	}
	raw, err := proto.Marshal(&m)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, decode(t, frame(t, raw)), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("plain values read differently (-want +got):\n%s", d)
	}
}

// A newer agent may say more.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	raw := content(t, encode(t, small()))
	raw = protowire.AppendTag(raw, 1000, protowire.BytesType)
	raw = protowire.AppendString(raw, "new")
	if d := cmp.Diff(small(), decode(t, frame(t, raw)), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDecodeRefuses(t *testing.T) {
	p := func(s string) *string { return &s }
	for _, tt := range []struct {
		spoil func(m *pb.Batch)
		want  string
	}{
		{func(m *pb.Batch) { m.Version = 2 }, "batch 1234: layout 2 is unknown: the sender is newer"},
		{func(m *pb.Batch) { m.Version = 0 }, "it says no version of its layout"},
		{func(m *pb.Batch) { m.Stream = m.Stream[1:] }, "stream of 15 bytes"},
		{func(m *pb.Batch) { m.Previous = m.Previous[1:] }, "previous hash of 31 bytes"},
		{func(m *pb.Batch) { m.Names = []*pb.Name{{Id: []byte("x")}} }, "name 0: an id of 1 and a parent of 0 bytes"},
		{func(m *pb.Batch) { m.Names = []*pb.Name{{Id: m.Stream, Path: "a\x00"}} }, "has a NUL"},
		{func(m *pb.Batch) { m.Gaps = []*pb.Gap{{Detail: strings.Repeat("x", 5000)}} }, "gap 0: \"xxx"},
		{func(m *pb.Batch) { m.Windows[0].Length = 1 << 63 }, "window 0: from "},
		{func(m *pb.Batch) { m.Windows[0].Start = -1 }, "window 0: from -1"},
		{func(m *pb.Batch) { m.Windows[1].Start = -1 }, "window 1: begins at "},
		{func(m *pb.Batch) { m.Windows[1].Boot = p("a"); m.Windows[2].Boot = p("a") }, "window 2: begins at 0, before"},
		{func(m *pb.Batch) { m.Windows[1].Offset = 1<<63 - 1 - m.Windows[0].Offset }, "window 1: offset 9223372036854775807"},
		{func(m *pb.Batch) { m.Windows[1].Opening = 9 }, "window 1: opening 9 is unknown"},
		{func(m *pb.Batch) { m.Windows[1].Cpus = 1 << 31 }, "window 1: 2147483648 CPUs"},
		{func(m *pb.Batch) { m.Windows[1].Rows = 1<<32 - 1 }, "rows: 4294967311, more than 100000"},
		{func(m *pb.Batch) { m.Windows[1].Rows++ }, "rows: 24 workloads for 25 rows"},
		{func(m *pb.Batch) { m.Windows = nil }, "balances: "},
		{func(m *pb.Batch) { m.Balances.Skew = nil; m.Balances.Idle = m.Balances.Idle[1:] }, "balances: 17 numbers for 3 windows of 6 resources"},
		{func(m *pb.Batch) { m.Balances.Resources[0] = pb.Resource_RESOURCE_PIDS }, "balances: resource 19 is unknown"},
		{func(m *pb.Batch) { m.Balances.Resources[0] = 5 }, "balances: memory: twice"},
		{func(m *pb.Batch) { m.Workloads[0] = m.Workloads[1] }, "rows: the list of workloads is not in ascending order"},
		{func(m *pb.Batch) { m.Workloads = append(m.Workloads, make([]uint64, 20)...) }, "rows: 28 workloads are listed for 24 rows"},
		{func(m *pb.Batch) { m.Rows.Workload[23]++ }, "rows: row 23 is of workload 8 of 8"},
		{func(m *pb.Batch) { m.Rows.Workload[8] = -1 }, "rows: row 8 is of workload -1 of 8"},
		{func(m *pb.Batch) { m.Rows.Shape[3] = 1 << 31 }, "rows: row 3 is of shape 2147483648 of "},
		{func(m *pb.Batch) { m.Rows.Shape = m.Rows.Shape[1:] }, "rows: 23 shapes for 24 rows"},
		{func(m *pb.Batch) { m.Rows.Shapes[0].Present |= 1 << (usage.Limit % 64) }, "rows: shape 0: resource 58 is unknown: the sender is newer than this server"},
		{func(m *pb.Batch) { m.Rows.Shapes[0].Has |= 1 }, "rows: shape 0: resource 0 is unknown"},
		{func(m *pb.Batch) { m.Rows.Shapes[0].Modelled = m.Rows.Shapes[0].Measured }, "rows: shape 0: qualities"},
		{func(m *pb.Batch) { m.Rows.Shapes[0].Partial = true }, "its time without readings is missing"},
		{func(m *pb.Batch) { m.Rows.Uncovered = []int64{1} }, "rows: 1 times without readings too many"},
		{func(m *pb.Batch) { m.Rows.Amounts[0].Resource = 0 }, "rows: amounts of resource 0 is unknown"},
		{func(m *pb.Batch) { m.Rows.Amounts[0].Resource = 300 }, "rows: amounts of resource 300 is unknown: the sender is newer"},
		{func(m *pb.Batch) { m.Rows.Amounts[len(m.Rows.Amounts)-1].Resource = usage.Limit }, "rows: amounts of resource 58 is unknown: the sender is newer"},
		{func(m *pb.Batch) { m.Rows.Amounts[1].Resource = 1 }, "rows: amounts of cpu: after cpu"},
		{func(m *pb.Batch) { m.Rows.Amounts[0].Deltas, m.Rows.Amounts[0].Values = []int64{1}, []uint64{1} }, "rows: amounts of cpu: values and deltas"},
		{func(m *pb.Batch) { c := m.Rows.Amounts[0]; c.Values = c.Values[1:] }, "rows: amounts of cpu: row 23: the number is missing"},
		{func(m *pb.Batch) { c := m.Rows.Amounts[0]; c.Values = append(c.Values, 1) }, "rows: amounts of cpu: 1 numbers too many"},
		{func(m *pb.Batch) { m.Rows.Amounts[0].Values[7] = 1 << 63 }, "rows: amounts of cpu: row 7: -9223372036854775808 is negative"},
		{func(m *pb.Batch) { m.Rows.Totals = append(m.Rows.Totals, 1) }, "rows: totals: "},
		{func(m *pb.Batch) { m.Rows.Totals[0] = -1 << 60 }, "rows: totals: one is negative"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Window: 3}} }, "volumes: 0 is of window 3 of 3"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Window: 1}, {Window: 1}, {Window: 0}} }, "volumes: 2 is of window 0, after one of window 1"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Used: 1 << 63}} }, "volumes: 0 has 9223372036854775808 of 0 bytes"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Size: 1 << 63}} }, "volumes: 0 has 0 of 9223372036854775808 bytes"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Window: 1, At: m.Windows[1].Length + 1}} }, "ns after the start of window 1"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Pod: "a\x00"}} }, "volumes: \"a\\x00\"... has a NUL"},
		{func(m *pb.Batch) { m.Volumes = []*pb.VolumeUse{{Volume: strings.Repeat("x", 5000)}} }, "volumes: \"xxx"},
		{func(m *pb.Batch) { m.Machine.Workload = []int64{0} }, "machine: it names workloads"},
		{func(m *pb.Batch) { m.Machine.Shape = nil }, "machine: 0 shapes for 3 rows"},
	} {
		var m pb.Batch
		if err := proto.Unmarshal(content(t, encode(t, manyTotals())), &m); err != nil {
			t.Fatal(err)
		}
		m.Rows.Amounts[0] = plain(manyTotals(), pb.Resource_RESOURCE_CPU)
		tt.spoil(&m)
		raw, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		_, err = wire.Decode(frame(t, raw), wire.Default())
		// An agent does not give a batch up because the server is older than the agent.
		kind := fault.ErrInvalid
		if strings.Contains(tt.want, "the sender is newer") {
			kind = wire.ErrNewer
		}
		if !errors.Is(err, kind) || errors.Is(err, fault.ErrInvalid) == errors.Is(err, fault.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want %s: %v", err, tt.want, kind)
		}
	}
}

// manyTotals is a small batch with some totals and CPU in values.
func manyTotals() *batch.Batch {
	b := small()
	row := &b.Windows[0].Rows[0]
	row.Has, row.Total = 1<<1, row.Usage.Amount
	return b
}

// Whatever the bytes say, memory stays within what Limits promises.
func TestBombs(t *testing.T) {
	l := wire.Limits{Sent: 64 << 10, Size: 1 << 20, Windows: 100, Rows: 1000, Names: 100, Gaps: 100, Labels: 4, Text: 100, Name: 1000}
	const tags = 400_000 // messages of two bytes and more
	message := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	table := func(number protowire.Number, content []byte) []byte {
		return message(9, bytes.Repeat(message(number, content), tags/(len(content)+1)))
	}
	huge := frame(t, make([]byte, 1<<20))
	lies := bytes.Clone(frame(t, make([]byte, 300)))
	for name, sent := range map[string][]byte{
		"sent":      make([]byte, 64<<10+1),
		"nothing":   nil,
		"no zstd":   []byte("Batch of nothing"),
		"size":      frame(t, make([]byte, 1<<20+1)),
		"much":      frame(t, make([]byte, 64<<20)),
		"no size":   frame(t, make([]byte, 100), zstd.WithSingleSegment(false)),
		"more":      append(lies, huge...),
		"zeros":     huge,
		"names":     frame(t, bytes.Repeat(message(5, nil), tags)),
		"labels":    frame(t, message(5, bytes.Repeat(message(12, nil), tags))),
		"gaps":      frame(t, bytes.Repeat(message(6, nil), tags)),
		"windows":   frame(t, bytes.Repeat(message(8, nil), tags)),
		"shapes":    frame(t, table(3, nil)),
		"columns":   frame(t, table(5, nil)),
		"tables":    frame(t, bytes.Repeat(message(9, nil), tags)),
		"values":    frame(t, table(5, message(2, make([]byte, 900_000)))),
		"totals":    frame(t, message(9, message(6, make([]byte, 1_000_000)))),
		"unpacked":  frame(t, message(9, bytes.Repeat([]byte{2 << 3, 0}, tags))),
		"workloads": frame(t, message(7, make([]byte, 1_000_000))),
		"peers":     frame(t, append(content(t, encode(t, small())), message(14, message(1, make([]byte, 1_000_000)))...)),
		"edges":     frame(t, append(content(t, encode(t, small())), message(14, message(5, make([]byte, 1_000_000)))...)),
		"unknown":   frame(t, bytes.Repeat(message(99, nil), tags)),
	} {
		allocated, err := decodeCounting(sent, l)
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: error %v, want fault.ErrInvalid", name, err)
		}
		if most := promised(l); allocated > most {
			t.Errorf("%s: %d bytes allocated, more than %d", name, allocated, most)
		}
	}
}

// A frame whose content is whole but not what its checksum says is refused.
func TestChecksum(t *testing.T) {
	sent := frame(t, content(t, encode(t, small())))
	if _, err := wire.Decode(sent, wire.Default()); err != nil {
		t.Fatal(err)
	}
	sent[len(sent)-1]++
	if b, err := wire.Decode(sent, wire.Default()); !errors.Is(err, fault.ErrInvalid) || b != nil {
		t.Errorf("%+v, %v", b, err)
	}
}

// promised is what Limits says of memory, and a little for errors and the like.
func promised(l wire.Limits) uint64 { return uint64(16*l.Size+600*l.Rows) + 256<<10 }

// decodeCounting decodes and says how many bytes were allocated by it.
func decodeCounting(sent []byte, l wire.Limits) (uint64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := wire.Decode(sent, l)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}

// FuzzDecode feeds messages in a frame of their own: what decodes is encoded to
// what decodes equal, and memory is bounded.
func FuzzDecode(f *testing.F) {
	for _, b := range []*batch.Batch{{}, small(), manyTotals(), handed(2, 3, 5)} {
		f.Add(content(f, encode(f, b)))
	}
	files, err := filepath.Glob("testdata/batch-*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		sent, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content(f, sent))
	}
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		f.Fatal(err)
	}
	l := wire.Default()
	l.Sent, l.Size, l.Rows, l.Handovers, l.Shares = 64<<10, 64<<10, 1000, 1000, 4000
	f.Fuzz(func(t *testing.T, raw []byte) {
		sent := e.EncodeAll(raw, nil)
		allocated, err := decodeCounting(sent, l)
		if most := promised(l); allocated > most {
			t.Errorf("%d bytes allocated, more than %d", allocated, most)
		}
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, wire.ErrNewer) {
				t.Errorf("error %v is neither fault.ErrInvalid nor ErrNewer", err)
			}
			return
		}
		want, err := wire.Decode(sent, l)
		if err != nil {
			t.Fatal(err)
		}
		if got := decode(t, encode(t, want)); !reflect.DeepEqual(got, want) {
			t.Errorf("encoded and decoded again (-want +got):\n%s", cmp.Diff(want, got))
		}
	})
}

// FuzzFrame feeds bytes as they come from the network.
func FuzzFrame(f *testing.F) {
	f.Add(encode(f, small()))
	f.Add([]byte("\x28\xb5\x2f\xfd"))
	l := wire.Default()
	l.Sent, l.Size, l.Rows, l.Handovers, l.Shares = 64<<10, 64<<10, 1000, 1000, 4000
	f.Fuzz(func(t *testing.T, sent []byte) {
		allocated, err := decodeCounting(sent, l)
		if err != nil && !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, wire.ErrNewer) {
			t.Errorf("error %v is neither fault.ErrInvalid nor ErrNewer", err)
		}
		if most := promised(l) + 1<<20; allocated > most { // the decoder's tables
			t.Errorf("%d bytes allocated, more than %d", allocated, most)
		}
	})
}
