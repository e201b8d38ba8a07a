package energy

import (
	"testing"

	"mete.dev/mete/internal/host/hostfs"
)

// A share that came by one way and is found by the other one later is as old as it
// was: a host that is gone is not believed for longer since it left a file.
func TestHostWays(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	s := &shares{host: h}
	for _, c := range []struct {
		by int
		n  int64
	}{{byFile, 1}, {byStream, 60}, {byStream, 61}, {byFile, 61}} {
		m := message(someUUID, c.n)
		if err := s.take(c.by, &m); err != nil {
			t.Fatal(err)
		}
	}
	stream, file := s.ways[byStream], s.ways[byFile]
	if file.moved != stream.moved || file.pace != stream.pace || stream.pace != 1e9 || *file.share != *stream.share {
		t.Errorf("by file %+v\nby stream %+v\nwant one and the same, a second after the one before", file, stream)
	}
	late := stream.moved + staleFor + 1
	if file.fresh(late) || stream.fresh(late) || !file.fresh(late-1) {
		t.Errorf("%d ns later: fresh by file %v, by stream %v", late-stream.moved, file.fresh(late), stream.fresh(late))
	}
}
