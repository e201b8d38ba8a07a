package spool_test

import (
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/testkit/faultfs"
)

// A stream is abandoned, its successor makes a batch and is split off, and then the record of
// the abandonment is lost: later records show which stream has the windows.
func TestLostHandOver(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	s := openSpool(t, config(fs))
	a, v := &agent{}, newServer()
	windows := func(n int) {
		t.Helper()
		for range n {
			if err := a.window(s, 1, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	windows(3)
	drain(t, s, v)
	windows(3)
	id := s.Streams()[0].Stream
	if _, ok, err := s.NextOffer(id); err != nil || !ok {
		t.Fatal(ok, err)
	}
	windows(3)

	const log = "spool/batches/0000000000000001.seg"
	before := fs.Bytes(log)
	m := v.mark(id)
	m.Last = batch.HashOf([]byte("another"))
	v.marks[id] = m
	if _, err := exchange(t, s, v, id, false); err != nil {
		t.Fatal(err)
	}
	after := fs.Bytes(log)
	if _, ok, err := s.NextOffer(s.Streams()[0].Stream); err != nil || !ok {
		t.Fatal(ok, err)
	}
	windows(2)
	if done, err := s.SplitBacklog(time.Unix(0, started).Add(time.Hour)); err != nil || !done {
		t.Fatal(done, err)
	}
	windows(1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	fs.FlipBit(log, 8*(before+after)/2)

	s = openSpool(t, config(fs))
	a.restore(t, s.Checkpoint())
	if st := s.Stats(); st.Corrupt != 1 {
		t.Fatalf("%+v, want one corrupt record", st)
	}
	windows(1)
	drain(t, s, v)
	v.check(t, a.now)
	if n := len(v.taken); n != 13 {
		t.Errorf("the server accepted %d windows of 13", n)
	}
}
