package spool

import (
	"errors"
	"slices"
	"testing"
)

// TestUnpack checks that a payload round-trips, and that one cut anywhere in its head is corrupt.
func TestUnpack(t *testing.T) {
	payload := pack(historyEntry{Number: 7, Through: 9}, []byte("bo"), []byte("dy"))
	var head historyEntry
	if body, err := unpack(payload, &head); err != nil || string(body) != "body" || head != (historyEntry{7, 9}) {
		t.Errorf("%q, %+v, %v", body, head, err)
	}
	for n := range len(payload) - len("body") {
		if body, err := unpack(payload[:n], &head); !errors.Is(err, errCorrupt) {
			t.Errorf("cut at %d: %q, %v", n, body, err)
		}
	}
	if body, err := unpack(payload[:len(payload)-4], &head); err != nil || len(body) != 0 {
		t.Errorf("without a body: %q, %v", body, err)
	}
}

// TestHistory checks which batches a stream remembers: every 360th, and of the older half every
// second when there are too many.
func TestHistory(t *testing.T) {
	st := &stream{}
	var want []historyEntry
	for n := range uint64(16*360 + 1) {
		st.addHistory(n, int64(10*n))
		if n%360 == 1 {
			want = append(want, historyEntry{n, int64(10 * n)})
		}
	}
	if !slices.Equal(st.History, want) || len(want) != 16 {
		t.Errorf("%d batches: %v", len(st.History), st.History)
	}
	st.addHistory(16*360+1, 99)
	want = append(want, historyEntry{16*360 + 1, 99})
	want = slices.Delete(want, 0, 1)
	for i := range 3 {
		want = slices.Delete(want, i+1, i+2)
	}
	want = slices.Delete(want, 4, 4)
	if !slices.Equal(st.History, want) {
		t.Errorf("thinned out: %v, want %v", st.History, want)
	}
}
