package energy

import (
	"testing"

	"mete.dev/mete/internal/host/hostfs"
)

// A share that the second channel delivers later keeps its time from the first: a file left
// by a dead host does not extend the validity.
func TestHostChannels(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	hm := &hostMeter{host: h, clock: h.Boottime}
	for _, c := range []struct {
		by int
		n  int64
	}{{viaFile, 1}, {viaStream, 60}, {viaStream, 61}, {viaFile, 61}} {
		m := message(someUUID, c.n)
		if err := hm.takeShare(c.by, &m); err != nil {
			t.Fatal(err)
		}
	}
	stream, file := hm.channels[viaStream], hm.channels[viaFile]
	if file.changedAt != stream.changedAt || file.interval != stream.interval || stream.interval != 1e9 || *file.share != *stream.share {
		t.Errorf("by file %+v\nby stream %+v\nwant the same share, a second after the previous one", file, stream)
	}
	late := stream.changedAt + staleFor + 1
	if file.isFresh(late) || stream.isFresh(late) || !file.isFresh(late-1) {
		t.Errorf("%d ns later: fresh by file %v, by stream %v", late-stream.changedAt, file.isFresh(late), stream.isFresh(late))
	}
}
