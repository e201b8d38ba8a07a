package sources_test

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/host/bpf"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestConnectionsSetting checks that programs for connections are loaded only where they are switched on, and that a note
// says why connections are absent.
func TestConnectionsSetting(t *testing.T) {
	cfg := everyTick(sources.Files)
	cfg.Connections = "some"
	if err := cfg.Validate(); !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
		t.Errorf("an unknown mode: %v, want ErrInvalid with a hint", err)
	}
	hosttest.Need(t, "bpf")
	hosttest.LockExclusive(t, "interfaces")
	for _, c := range []struct {
		reader, classes, connections string
		loaded                       bool
		note                         string
	}{
		{sources.BPF, "", "", false, ""},
		{sources.BPF, "", sources.ConnectionsOff, false, ""},
		{sources.BPF, "", sources.ConnectionsAuto, true, ""},
		{sources.BPF, sources.ClassesOff, sources.ConnectionsAuto, false, "network by peer: absent (traffic is not counted by class: it is switched off)"},
		{sources.Files, "", sources.ConnectionsAuto, false, "network by peer: absent (traffic is not counted by class: "},
	} {
		cfg := everyTick(c.reader)
		cfg.NetworkClasses, cfg.Connections = c.classes, c.connections
		cfg.Energy.Powercap = t.TempDir()
		m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		loaded, refused, _ := m.Programs()
		liveTick(t, m)
		notes := m.Live().Notes
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if (loaded&bpf.Connections != 0) != c.loaded || len(refused) > 0 {
			t.Errorf("%+v: loaded %v, refused %v", c, loaded, refused)
		}
		is := func(n string) bool { return strings.HasPrefix(n, "network by peer") }
		if i := slices.IndexFunc(notes, is); i < 0 && c.note != "" || i >= 0 && (c.note == "" || !strings.HasPrefix(notes[i], c.note)) {
			t.Errorf("%+v: notes %q", c, notes)
		}
	}
}
