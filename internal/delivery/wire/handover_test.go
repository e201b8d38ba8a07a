package wire_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	pb "mete.dev/mete/proto"
)

var half = rapid.OneOf(rapid.Just(int64(0)), rapid.Just(int64(1<<62)), rapid.Int64Range(0, 1<<40))

// drawHandover draws of few guests, so that they meet again.
func drawHandover(t *rapid.T) usage.Handover {
	share := func() power.Share {
		return power.Share{Epoch: rapid.SampledFrom([]string{"e", "f", "g h"}).Draw(t, "epoch"), N: amount.Draw(t, "n"),
			Active: half.Draw(t, "active"), Idle: half.Filter(func(v int64) bool { return v < 1<<62 }).Draw(t, "idle")}
	}
	h := usage.Handover{Guest: fmt.Sprintf("00000000-1111-2222-3333-44444444444%d", rapid.IntRange(0, 1).Draw(t, "guest")), Booked: rapid.Int64().Draw(t, "booked")}
	if rapid.Bool().Draw(t, "host") {
		h.Workload, h.Name = workload.NewID("n", workload.VM, h.Guest), rapid.SampledFrom([]string{"", "vm"}).Draw(t, "name")
	}
	if rapid.Bool().Draw(t, "opened") {
		h.Opened = share()
	}
	for range rapid.IntRange(0, 3).Draw(t, "shares") {
		h.Shares = append(h.Shares, share())
	}
	return h
}

// handed is a batch of windows of ten seconds of a host whose guests draw some
// forty watts, a tick a second.
func handed(seed uint64, guests, windows int) *batch.Batch {
	r := rand.New(rand.NewPCG(seed, 1))
	b := &batch.Batch{Number: 1}
	states := make([]usage.Handover, guests)
	for i := range states {
		uuid := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", r.Uint32(), r.Uint32()&0xffff, r.Uint32()&0xfff, r.Uint32()&0xfff, r.Uint64()&(1<<48-1))
		id := workload.NewID("n", workload.VM, uuid)
		states[i] = usage.Handover{Guest: uuid, Workload: id, Opened: power.Share{Epoch: string(workload.NewID("n", workload.VM, "epoch"+uuid)),
			N: 900_000_000 + r.Int64N(1000), Active: 1e12 + r.Int64N(1e12), Idle: 1e12 + r.Int64N(1e12)}}
	}
	at := int64(900_000_000)
	for range windows {
		w := usage.Window{Boot: "b", Start: at * 1e6, End: (at + 10_000) * 1e6}
		at += 10_000
		for i := range states {
			h := &states[i]
			h.Shares = nil
			last := h.Opened
			for range 10 {
				ms := 1000 + r.Int64N(5) - 2
				last.N, last.Active, last.Idle = last.N+ms, last.Active+ms*(40_000+r.Int64N(8000)), last.Idle+ms*15_000
				h.Shares = append(h.Shares, last)
			}
			h.Booked = last.Energy() - h.Opened.Energy()
			w.Handovers = append(w.Handovers, *h)
			h.Opened = last
		}
		b.Windows = append(b.Windows, w)
	}
	return b
}

// TestSizeOfHandovers checks how many bytes each virtual machine adds to a window of ten
// seconds.
func TestSizeOfHandovers(t *testing.T) {
	for _, tt := range []struct {
		guests, windows int
		most            float64 // bytes for each guest and window
	}{{1, 1, 190}, {20, 1, 175}, {1, 60, 100}, {20, 60, 90}} {
		b := handed(1, tt.guests, tt.windows)
		sent := len(encode(t, b))
		for i := range b.Windows {
			b.Windows[i].Handovers = nil
		}
		each := float64(sent-len(encode(t, b))) / float64(tt.guests*tt.windows)
		t.Logf("%d guests x %d windows: %.0f bytes each", tt.guests, tt.windows, each)
		if each > tt.most {
			t.Errorf("%d guests x %d windows: %.0f bytes each, want %.0f at most", tt.guests, tt.windows, each, tt.most)
		}
	}
}

// TestGoldenHandovers checks that Decode reads the bytes of earlier versions.
func TestGoldenHandovers(t *testing.T) {
	const file = "testdata/handovers-1"
	want := handed(3, 2, 2)
	if *update {
		if err := os.WriteFile(file, encode(t, want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	sent, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, decode(t, sent)); d != "" {
		t.Errorf("%s reads differently (-want +got):\n%s", file, d)
	}
}

// TestPrepareHandovers checks that a host's handover keeps all shares, that a guest's
// keeps the last one, and that Prepare omits what every server refuses.
func TestPrepareHandovers(t *testing.T) {
	const uuid = "00112233-4455-6677-8899-aabbccddeeff"
	id := workload.NewID("n", workload.VM, uuid)
	share := func(n int64) power.Share {
		return power.Share{Guest: uuid, Epoch: "e", N: n, At: n * 1e6, Active: 10 * n, Idle: n, Error: 3, Modelled: 2}
	}
	sent := func(n int64) power.Share { return power.Share{Epoch: "e", N: n, Active: 10 * n, Idle: n} }
	vm := usage.NewRow(&usage.Identity{Workload: workload.Workload{ID: id, Kind: workload.VM, Name: "vm"}})
	vm.Ended = true
	w := &usage.Window{Rows: []usage.Row{vm}, Handovers: []usage.Handover{
		{Guest: uuid, Workload: id, Name: "vm", Opened: share(1), Shares: []power.Share{share(2), {Epoch: "e", N: 3, Active: -1}, share(4)}, Booked: 33},
		{Guest: uuid, Workload: id, Name: "other", Shares: []power.Share{share(2)}},
		{Guest: uuid, Name: "guest", Opened: share(1), Shares: []power.Share{share(2), share(4)}, Booked: 33},
		{Guest: strings.ToUpper(uuid)}, {Guest: ""}, {Guest: uuid, Workload: "x"},
	}}
	want := []usage.Handover{
		{Guest: uuid, Workload: id, Opened: sent(1), Shares: []power.Share{sent(2), sent(4)}, Booked: 33},
		{Guest: uuid, Workload: id, Name: "other", Shares: []power.Share{sent(2)}},
		{Guest: uuid, Opened: sent(1), Shares: []power.Share{sent(4)}, Booked: 33},
	}
	b := wire.Prepare(w)
	if d := cmp.Diff(want, b.Handovers); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	got := decode(t, encode(t, &batch.Batch{Windows: []usage.Window{b}}))
	if d := cmp.Diff(want, got.Windows[0].Handovers); d != "" {
		t.Errorf("sent (-want +got):\n%s", d)
	}
}

func TestDecodeRefusesHandovers(t *testing.T) {
	for name, change := range map[string]func(*pb.Handovers){
		"short UUID":          func(h *pb.Handovers) { h.Guests[0].Uuid = h.Guests[0].Uuid[1:] },
		"long workload":       func(h *pb.Handovers) { h.Guests[0].Workload = append(h.Guests[0].Workload, 1) },
		"NUL":                 func(h *pb.Handovers) { h.Guests[0].Name = "\x00" },
		"NUL in an epoch":     func(h *pb.Handovers) { h.Epochs[0] = "\x00" },
		"a novel of an epoch": func(h *pb.Handovers) { h.Epochs[0] = strings.Repeat("e", 65) },
		"no epoch":            func(h *pb.Handovers) { h.Epochs[0] = "" },
		"counts":              func(h *pb.Handovers) { h.Counts = h.Counts[1:] },
		"another count":       func(h *pb.Handovers) { h.Counts[0]++ },
		"many":                func(h *pb.Handovers) { h.Counts[0] = 1 << 31 },
		"no such guest":       func(h *pb.Handovers) { h.Guest[0] = 9 },
		"no such epoch":       func(h *pb.Handovers) { h.Epoch[0] = 9 },
		"one epoch further":   func(h *pb.Handovers) { h.Epoch[0] = uint32(len(h.Epochs)) },
		"one guest further":   func(h *pb.Handovers) { h.Guest[0] = uint32(len(h.Guests)) },
		"nothing to go on":    func(h *pb.Handovers) { h.Opened[0] = pb.Opened_OPENED_LAST },
		"newer":               func(h *pb.Handovers) { h.Opened[0] = 7 },
		"one share too many":  func(h *pb.Handovers) { h.Shares[0]-- },
		"a last one too many": func(h *pb.Handovers) { h.Shares[len(h.Shares)-1]-- },
		"no shares at all": func(h *pb.Handovers) {
			h.Opened, h.Epoch, h.N, h.Active, h.Idle = []pb.Opened{pb.Opened_OPENED_TOLD, 0, 0, 0}, nil, nil, nil, nil
			clear(h.Shares)
		},
		"one too few":      func(h *pb.Handovers) { h.Shares[0]++ },
		"far too few":      func(h *pb.Handovers) { h.Shares[0] = 1 << 31 },
		"column":           func(h *pb.Handovers) { h.Idle = h.Idle[1:] },
		"booked":           func(h *pb.Handovers) { h.Booked = []int64{1} },
		"negative":         func(h *pb.Handovers) { h.Active[0] = -1 },
		"negative later":   func(h *pb.Handovers) { h.Active[1] = -1 << 62 },
		"negative at last": func(h *pb.Handovers) { h.Active[41] = -1 << 62 },
		"overflow":         func(h *pb.Handovers) { h.Active[0], h.Idle[0] = 1<<62, 1<<62 },
	} {
		var m pb.Batch
		if err := proto.Unmarshal(content(t, encode(t, handed(1, 2, 2))), &m); err != nil {
			t.Fatal(err)
		}
		change(m.Handovers)
		raw, err := proto.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		// The first error counts: it says what is wrong.
		want := map[string]string{
			"no such guest": "is of guest 9 of 2", "one guest further": "is of guest 2 of 2", "no such epoch": "is of epoch 9 of 2", "one epoch further": "is of epoch 2 of 2",
			"nothing to go on": "a guest without shares", "newer": "opened 7 is unknown", "far too few": "more than are left", "negative": "share 0: number", "negative later": "share 1: number", "negative at last": "share 41: number", "overflow": "share 0: number",
			"a last one too many": "more shares than handovers have", "no shares at all": "shares are missing", "counts": "counts of 1 windows", "many": "2147483650, more than", "column": "do not have all columns",
		}[name]
		if _, err := wire.Decode(frame(t, raw), wire.Default()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want fault.ErrInvalid, %s", name, err, want)
		}
	}
	sent := encode(t, handed(1, 3, 3))
	for _, change := range []func(*wire.Limits){func(l *wire.Limits) { l.Handovers = 8 }, func(l *wire.Limits) { l.Shares = 92 }} {
		l := wire.Default()
		change(&l)
		if _, err := wire.Decode(sent, l); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("limits %+v: %v, want fault.ErrInvalid", l, err)
		}
	}
}

func TestEncodeRefusesHandovers(t *testing.T) {
	const uuid = "00112233-4455-6677-8899-aabbccddeeff"
	for _, h := range []usage.Handover{{Guest: "x"}, {Guest: uuid, Workload: "x"}, {Guest: uuid, Shares: []power.Share{{N: 1}}},
		{Guest: uuid, Opened: power.Share{Epoch: "e", Idle: -1}}} {
		if _, err := wire.Encode(nil, &batch.Batch{Windows: []usage.Window{{Handovers: []usage.Handover{h}}}}); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v, want fault.ErrInvalid", h, err)
		}
	}
}
