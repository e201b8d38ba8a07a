package wire_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mete.dev/mete/internal/delivery/wire"
	"mete.dev/mete/internal/model/replica"
)

// The same batches and pages give the same bytes in every version. They are compared
// before compression, whose bytes may change with its library.
func TestEncodedBytesStay(t *testing.T) {
	const file = "testdata/encoded"
	var got strings.Builder
	add := func(name string, sent []byte) {
		fmt.Fprintf(&got, "%s %x\n", name, sha256.Sum256(content(t, sent)))
	}
	for _, size := range [][2]int{{1, 1}, {6, 3}, {500, 1}, {100, 60}} {
		b, _ := newMachine(uint64(size[0]), size[0]).batch(size[1])
		add(fmt.Sprintf("machine-%dx%d", size[0], size[1]), encode(t, b))
	}
	for _, guests := range []int{1, 20} {
		add(fmt.Sprintf("handovers-%d", guests), encode(t, handed(7, guests, 3)))
	}
	batches, pages := rapid.Custom(drawBatch), rapid.Custom(func(t *rapid.T) *replica.Page { return drawPage(t) })
	for seed := range 40 {
		add(fmt.Sprintf("batch-%d", seed), encode(t, batches.Example(seed)))
		sent, err := wire.EncodeStates(nil, pages.Example(seed))
		if err != nil {
			t.Fatal(err)
		}
		add(fmt.Sprintf("page-%d", seed), sent)
	}
	windows := rapid.Custom(drawAgentWindows)
	for seed := range 200 {
		ws := windows.Example(seed)
		add(fmt.Sprintf("sent-merged-%d", seed), encode(t, sentMerged(ws)))
		add(fmt.Sprintf("kept-merged-%d", seed), encode(t, keptMerged(t, ws)))
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}
