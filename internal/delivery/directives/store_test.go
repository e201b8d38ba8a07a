package directives

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/directive"
	"mete.dev/mete/internal/testkit/syncbuf"
)

func TestRestart(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		m.stop()
		away := awayServer()
		// The same boot: what is on disk holds at once, and expires in boottime, whatever the wall clock says.
		m.shift = 1000 * time.Hour
		m.sleep(12 * time.Hour)
		m.start(away)
		m.follows("a=one")
		m.sleep(13 * time.Hour)
		m.follows("")
		m.stop()
		// After it expired its epoch is still known.
		m.shift = 0
		old := newServer()
		old.set("a", "old", 4)
		m.start(old)
		m.sleep(settle)
		m.follows("")
		old.set("a", "new", 6)
		m.sleep(settle)
		m.follows("a=new")
		m.stop()
		// Another boot: the wall clock says how long it was away; one that went back says nothing.
		for _, c := range []struct {
			wall time.Duration
			want string
		}{{2 * time.Hour, "a=new"}, {-1000 * time.Hour, "a=new"}, {23 * time.Hour, "a=new"}, {25 * time.Hour, ""}} {
			m.boot, m.booted, m.shift = fmt.Sprint("boot", c.wall), time.Now(), c.wall
			content, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			m.start(away)
			m.follows(c.want)
			m.stop()
			if err := os.WriteFile(m.file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestFile(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		away := awayServer()
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		m.stop()
		content := m.stored()
		if st, err := os.Stat(m.file); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v", st, err)
		}
		if st, err := os.Stat(filepath.Dir(m.file)); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("the directory: %v, %v", st, err)
		}
		for name, c := range map[string]struct {
			from, to string // what is replaced in the file
			log      string // what is said of it
			after    string
		}{
			"another node":    {`"n1"`, `"n2"`, "", ""},
			"broken":          {`{`, `[`, "cannot be used", ""},
			"another version": {`"version":1`, `"version":2`, "cannot be used", ""},
			"as it was":       {`"a"`, `"a"`, "", "a=one"},
			"unknown section": {`"a"`, `"z"`, "", ""},
			"bad content":     {`"b25l"`, `"YmFk"`, "cannot be followed", ""}, // the content is "bad", as of a program that knew more
		} {
			if err := os.WriteFile(m.file, seal(bytes.Replace(content, []byte(c.from), []byte(c.to), 1)), 0o600); err != nil {
				t.Fatal(err)
			}
			m.log = &syncbuf.Buffer{}
			m.start(away)
			m.follows(c.after)
			m.stop()
			if !strings.Contains(m.log.String(), c.log) || c.log == "" && strings.Contains(m.log.String(), "disk") {
				t.Errorf("%s: log:\n%s", name, m.log)
			}
			// The server gives it again.
			m.start(s)
			m.sleep(settle)
			m.follows("a=one")
			m.stop()
		}
		// A section that cannot be kept holds while the follower runs.
		if err := errors.Join(os.Remove(m.file), os.MkdirAll(filepath.Join(m.file, "x"), 0o700)); err != nil {
			t.Fatal(err)
		}
		m.log = &syncbuf.Buffer{}
		m.start(s)
		m.sleep(settle)
		m.follows("a=one")
		m.sleep(48 * time.Hour)
		m.follows("a=one")
		if n := strings.Count(m.log.String(), "cannot be kept on disk"); n != 1 {
			t.Errorf("%d messages:\n%s", n, m.log)
		}
		if err := os.RemoveAll(m.file); err != nil {
			t.Fatal(err)
		}
		m.sleep(6 * time.Minute)
		m.stop()
		if now, err := os.ReadFile(m.file); err != nil || !strings.Contains(string(now), `"epoch":5`) {
			t.Errorf("the file is not written once it can be: %s, %v", now, err)
		}
	})
}

// TestSaves checks that confirmations are written seldom, and often enough.
func TestSaves(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		writes := 0
		var last time.Time
		for range 20 * 60 {
			m.sleep(time.Minute)
			st, err := os.Stat(m.file)
			if err != nil {
				t.Fatal(err)
			}
			if !st.ModTime().Equal(last) {
				writes, last = writes+1, st.ModTime()
			}
		}
		if writes < 15 || writes > 22 {
			t.Errorf("%d writes in 20 h, want one an hour, which is 1/24 of the life", writes)
		}
		// A restart in the same boot changes nothing.
		m.stop()
		m.start(s)
		m.sleep(settle)
		if st, err := os.Stat(m.file); err != nil || !st.ModTime().Equal(last) {
			t.Errorf("the file is written after a restart: %v, %v", st, err)
		}
	})
}

// stored returns what the machine's file holds, without the checksum.
func (m *machine) stored() []byte {
	m.t.Helper()
	b, err := os.ReadFile(m.file)
	if err == nil {
		b, err = unseal(b)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	return b
}

// one is a section that a file of [write] has.
var one = directive.Section{Name: "a", Hash: directive.HashOf([]byte("one")), Epoch: 5, Life: 60}

// write writes a file with the section one, which has left ns to live, at boottime 1000 of boot b, and returns the
// configuration of its follower.
func write(t *testing.T, left int64) Config {
	t.Helper()
	cfg := Default()
	cfg.Node, cfg.File = "n1", filepath.Join(t.TempDir(), "f")
	b, err := json.Marshal(stored{Version: 1, Node: "n1", Boot: "b", Boottime: 1000, Wall: 7000, Sections: []storedSection{{one, left, []byte("one")}}})
	if err := errors.Join(err, os.WriteFile(cfg.File, seal(b), 0o600)); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// at returns a follower of section a that starts at a time, and keeps what it follows in follows.
func at(cfg Config, now *batch.Clock, follows *[]byte, log io.Writer) *Follower {
	apply := map[string]Apply{"a": func(content []byte) error { *follows = content; return nil }}
	return New(cfg, nil, apply, func() (batch.Clock, error) { return *now, nil }, slog.New(slog.NewTextHandler(log, nil)))
}

// TestExpiry checks the moment in which a section expires, from the file and while it is held.
func TestExpiry(t *testing.T) {
	for _, c := range []struct {
		left int64 // ns when the file was written
		boot string
		boottime, wall,
		until int64 // when it expires as boottime
	}{
		{50, "b", 1000, 7000, 1050},
		{50, "b", 1049, 9000, 1050}, // the wall clock counts only after another boot
		{50, "b", 1050, 7000, 0},
		{50, "other", 10, 7000, 60},
		{50, "other", 10, 7049, 11},
		{50, "other", 10, 7050, 0},
		{50, "other", 10, 6000, 60},
	} {
		now := batch.Clock{Boot: c.boot, Boottime: c.boottime, Wall: c.wall}
		var follows []byte
		f := at(write(t, c.left), &now, &follows, io.Discard)
		if (follows != nil) != (c.until > 0) {
			t.Errorf("%+v: follows %q", c, follows)
		}
		if st := f.Status(); len(st) != 1 || st[0].Epoch != 5 || int64(st[0].Left) != max(0, c.until-c.boottime) {
			t.Errorf("%+v: %+v", c, st)
		}
		if c.until == 0 {
			continue
		}
		for _, at := range []int64{c.until - 1, c.until} {
			now.Boottime = at
			if f.expire(now); (follows != nil) != (at < c.until) {
				t.Errorf("%+v: follows %q at %d", c, follows, at)
			}
		}
	}
}

// TestNoClock checks that the file says nothing without a clock.
func TestNoClock(t *testing.T) {
	f := New(write(t, 50), nil, map[string]Apply{"a": func([]byte) error { t.Error("applied"); return nil }}, func() (batch.Clock, error) { return batch.Clock{}, errors.New("no clock") }, slog.New(slog.DiscardHandler))
	if st := f.Status(); len(st) != 0 {
		t.Errorf("%+v", st)
	}
	if err := f.poll(t.Context()); err == nil || err.Error() != "no clock" {
		t.Errorf("a request without a clock: %v", err)
	}
}

// TestSaveTimes checks the moment from which on a confirmation is written: 1/24 of the life after the file was.
func TestSaveTimes(t *testing.T) {
	const part = 60e9 / 24
	cfg, now := write(t, 60e9), batch.Clock{Boot: "b", Boottime: 1000, Wall: 7000}
	var follows []byte
	f := at(cfg, &now, &follows, io.Discard)
	saves := func(boottime int64, want bool) {
		t.Helper()
		if err := os.RemoveAll(cfg.File); err != nil {
			t.Fatal(err)
		}
		f.save(batch.Clock{Boot: "b", Boottime: boottime, Wall: 7000}, false)
		if _, err := os.Stat(cfg.File); (err == nil) != want {
			t.Errorf("at %d: %v", boottime, err)
		}
	}
	saves(1000+part-1, false)
	saves(1000+part, true)
	saves(1000+2*part-1, false)
	saves(1000+2*part, true)
	now.Boottime = 1000 + 60e9
	f.expire(now)
	saves(1000+100*part, false) // nothing holds that could be confirmed
}

// TestNoFile checks that a follower without a file works, and says nothing about it.
func TestNoFile(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		m.file = ""
		s.set("a", "one", 1)
		m.start(s)
		m.sleep(2 * time.Hour)
		if m.follows("a=one"); strings.Contains(m.log.String(), "disk") {
			t.Errorf("log:\n%s", m.log)
		}
	})
}

// TestNewerContent starts with a file whose content this program cannot follow, as a newer one wrote it: the server hears of it.
func TestNewerContent(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 5)
		m.start(s)
		m.sleep(settle)
		m.stop()
		bad := bytes.Replace(m.stored(), []byte(`"b25l"`), []byte(`"YmFk"`), 1)
		bad = bytes.Replace(bad, []byte(directive.HashOf([]byte("one"))), []byte(directive.HashOf([]byte("bad"))), 1)
		if err := os.WriteFile(m.file, seal(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		s.set("a", "bad", 5)
		m.start(s)
		m.sleep(settle)
		m.follows("")
		if st := m.f.Status(); len(s.hears()) != 1 || len(st) != 1 || st[0].Rejected != "it is bad" || st[0].Left != 0 {
			t.Errorf("the server hears of %q, the status is %+v", s.hears(), st)
		}
	})
}

// TestCorrupt checks that a file is not used if any bit of it is wrong, or if its end is missing.
func TestCorrupt(t *testing.T) {
	cfg, now := write(t, 50), batch.Clock{Boot: "b", Boottime: 1000, Wall: 7000}
	good, err := os.ReadFile(cfg.File)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, content []byte, usable bool) {
		t.Helper()
		if err := os.WriteFile(cfg.File, content, 0o600); err != nil {
			t.Fatal(err)
		}
		var follows []byte
		var log syncbuf.Buffer
		f := at(cfg, &now, &follows, &log)
		if (follows != nil) != usable || (len(f.Status()) > 0) != usable || strings.Contains(log.String(), "its checksum is wrong") == usable {
			t.Fatalf("%s: follows %q, %+v, log:\n%s", what, follows, f.Status(), &log)
		}
	}
	check("the file as it was written", good, true)
	for i := range good {
		for bit := range 8 {
			bad := bytes.Clone(good)
			bad[i] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d", bit, i), bad, false)
		}
		check(fmt.Sprintf("the first %d bytes", i), good[:i], false)
	}
}

// TestRebootSaves checks that the file is written soon after a reboot: its time is of the other boot.
func TestRebootSaves(t *testing.T) {
	onMachine(t, func(t *testing.T, s *fakeServer, m *machine) {
		s.set("a", "one", 1)
		m.start(s)
		m.sleep(settle)
		m.stop()
		for i := range 10 { // each for less than the time after which a file is written otherwise
			m.boot, m.booted = fmt.Sprint("boot", i), time.Now()
			m.start(s)
			m.sleep(50 * time.Minute)
			m.stop()
			time.Sleep(2 * time.Hour)
		}
		away := awayServer()
		m.boot, m.booted = "last", time.Now()
		m.start(away)
		m.follows("a=one")
	})
}
