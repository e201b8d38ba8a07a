package spool_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/delivery/spool"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit/faultfs"
)

// kept is what a spool returns to an agent that starts.
func kept(s *spool.Spool) string {
	var all []string
	for _, b := range append(s.Checkpoint(), s.Texts()...) {
		all = append(all, string(b))
	}
	return strings.Join(all, " ")
}

func note(s *spool.Spool, text, body string) error {
	var b []byte
	if text != "" {
		b = []byte(text)
	}
	return s.AppendNote(b, func() []byte { return []byte(body) })
}

// saved appends a window with a checkpoint.
func saved(t *testing.T, s *spool.Spool, n int64, checkpoint string) {
	t.Helper()
	w := between((n-1)*tick, n*tick, usage.StartContinued)
	if err := s.Append(w, nil, nil, func(full bool) []byte { return fmt.Appendf(nil, "%s:%v", checkpoint, full) }, nil); err != nil {
		t.Fatal(err)
	}
}

// TestNotes checks that notes survive a crash in order, from before the first window on, and that
// the next window ends them.
func TestNotes(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := spool.Default()
	cfg.Dir, cfg.FS = "/spool", fs
	s := openSpool(t, cfg)
	crash := func(want string) {
		t.Helper()
		if got := kept(s); got != want {
			t.Errorf("before the crash %q, want %q", got, want)
		}
		fs.Crash()
		s = openSpool(t, cfg)
		if got := kept(s); got != want {
			t.Errorf("after the crash %q, want %q", got, want)
		}
	}
	if err := note(s, "", "x"); err == nil {
		t.Error("a note without a checkpoint")
	}
	if err := s.Begin([]byte(`{"first":1}`), []byte("begin")); err != nil {
		t.Fatal(err)
	}
	crash(`begin {"first":1}`)
	for _, n := range [][2]string{{"", "e1"}, {`"t2"`, ""}, {`"t3"`, "e3"}} {
		if err := note(s, n[0], n[1]); err != nil {
			t.Fatal(err)
		}
	}
	crash(`begin e1 e3 {"first":1} "t2" "t3"`)
	saved(t, s, 1, "w1")
	crash("w1:true")
	saved(t, s, 2, "w2")
	if err := note(s, "", "e4"); err != nil {
		t.Fatal(err)
	}
	crash("w2:true e4")
	if err := s.Begin(nil, []byte("again")); err != nil { // counting began again
		t.Fatal(err)
	}
	crash("again")
	if st := s.Stats(); st.Windows != 2 || st.Corrupt != 0 {
		t.Errorf("%+v, want two windows and nothing corrupt", st)
	}
	shut(t, s)
}

// TestNotesFullDisk checks that a note that fails leaves windows and earlier notes as they are, and
// that notes are possible again after the next window.
func TestNotesFullDisk(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := spool.Default()
	cfg.Dir, cfg.FS = "/spool", fs
	s := openSpool(t, cfg)
	saved(t, s, 1, "w1")
	if err := note(s, "", "e1"); err != nil {
		t.Fatal(err)
	}
	fs.SetFree(0)
	if err := note(s, "", "e2"); err == nil {
		t.Error("a note on a full disk")
	}
	fs.SetFree(-1)
	calls := 0
	if err := s.AppendNote(nil, func() []byte { calls++; return []byte("e3") }); err == nil || calls > 0 {
		t.Errorf("a note after a failed write: %v, %d calls", err, calls)
	}
	fs.Crash()
	s = openSpool(t, cfg)
	if got, want := kept(s), "w1:true e1"; got != want {
		t.Errorf("after a crash %q, want %q", got, want)
	}
	fs.SetFree(0)
	if err := note(s, "", "e4"); err == nil {
		t.Error("a note on a full disk")
	}
	fs.SetFree(-1)
	saved(t, s, 2, "w2")
	if err := note(s, "", "e5"); err != nil {
		t.Error(err)
	}
	fs.Crash()
	s = openSpool(t, cfg)
	if got, want := kept(s), "w2:true e5"; got != want {
		t.Errorf("at the end %q, want %q", got, want)
	}
	shut(t, s)
}

// TestNoteOfNewer checks that an agent that does not know a kind of record, as agents of before
// notes do not know these, counts it as damage and keeps the windows and their checkpoint.
func TestNoteOfNewer(t *testing.T) {
	cfg := onDisk(t)
	s := openSpool(t, cfg)
	saved(t, s, 1, "w1")
	shut(t, s)
	name := filepath.Join(cfg.Dir, "windows", "0000000000000001.seg")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	records := spool.Payloads(b)
	newer := spool.Segment(9, append([]byte{2, 0, 0, 0}, "{}..."...))
	head := len(spool.Segment(1))
	if err := os.WriteFile(name, slices.Concat(b, newer[head:]), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openSpool(t, cfg)
	if st := s.Stats(); st.Corrupt != 1 || st.Windows != len(records) || kept(s) != "w1:true" {
		t.Errorf("%+v, %q", st, kept(s))
	}
	shut(t, s)
}

// TestTexts checks that the texts of windows and notes survive a crash in order, also of windows whose books did not
// change, and that the first window after a start has everything.
func TestTexts(t *testing.T) {
	fs := faultfs.New(func(int) int { return 0 })
	cfg := spool.Default()
	cfg.Dir, cfg.FS = "/spool", fs
	s := openSpool(t, cfg)
	n := int64(0)
	put := func(text, books string) error {
		n++
		w := between((n-1)*tick, n*tick, usage.StartContinued)
		return s.Append(w, nil, nil, func(bool) []byte { return []byte(books) }, func(full bool) []byte {
			if text == "" {
				return nil
			}
			return fmt.Appendf(nil, `"%s:%v"`, text, full)
		})
	}
	for _, w := range [][2]string{{"t1", "w1"}, {"t2", ""}, {"", "w3"}, {"", ""}, {"t5", "w5"}} {
		if err := put(w[0], w[1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := note(s, `"t6"`, "e6"); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"before", "after"} {
		if got, want := kept(s), `w1 w3 w5 e6 "t1:true" "t2:false" "t5:false" "t6"`; got != want {
			t.Errorf("%s the crash %q, want %q", when, got, want)
		}
		fs.Crash()
		s = openSpool(t, cfg)
	}
	if err := put(`"`, "x"); err == nil || s.Stats().Windows != 5 {
		t.Errorf("a text that is not JSON: %v, %d windows", err, s.Stats().Windows)
	}
	if err := put("t7", ""); err != nil {
		t.Fatal(err)
	}
	if got, want := kept(s), `"t7:true"`; got != want {
		t.Errorf("after the next window %q, want %q", got, want)
	}
	shut(t, s)
}
