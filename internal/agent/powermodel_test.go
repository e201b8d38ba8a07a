package agent

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// learned is a machine with power models.
type learned string

func (l learned) PowerModels() []byte { return []byte(l) }

// TestPowerModelIsSaved checks that models are saved some minutes after the start and then every
// five minutes, and that a failure is logged once.
func TestPowerModelIsSaved(t *testing.T) {
	var j syncbuf.Buffer
	l := powerModelFile{file: filepath.Join(t.TempDir(), "agent", "power.json"), log: slog.New(slog.NewTextHandler(&j, nil))}
	minute := int64(time.Minute)
	for _, step := range []struct {
		at   int64
		text learned
		want string
	}{{minute, "1", ""}, {5 * minute, "2", ""}, {6 * minute, "3", "3"}, {10 * minute, "4", "3"}, {11 * minute, "5", "5"}} {
		l.saveIfDue(step.at, step.text)
		if got := string(l.read()); got != step.want {
			t.Errorf("after %d minutes the file has %q, want %q", step.at/minute, got, step.want)
		}
	}
	file := l.file
	l.file = filepath.Join(file, "below a file")
	for i := range int64(3) {
		l.saveIfDue((20+10*i)*minute, learned("6"))
	}
	l.file = file
	l.save(learned("7"))
	if got := j.String(); strings.Count(got, "level=WARN") != 1 || strings.Count(got, "saved again") != 1 {
		t.Errorf("the log has not one warning and one end of it:\n%s", got)
	}
	if es, err := os.ReadDir(filepath.Dir(file)); err != nil || len(es) != 1 {
		t.Errorf("%v, %v; want the file alone", es, err)
	}
}

// TestPowerModelIsRestored checks that saved models are restored, that a corrupt file is logged and
// renamed without failing, and that models of another machine are not used.
func TestPowerModelIsRestored(t *testing.T) {
	hosttest.Need(t, "procfs")
	open := func(t *testing.T, text string) (m *sources.Machine, file, log string) {
		t.Helper()
		var j syncbuf.Buffer
		l := powerModelFile{file: filepath.Join(t.TempDir(), "power.json"), log: slog.New(slog.NewTextHandler(&j, nil))}
		if text != "" {
			if err := os.WriteFile(l.file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		cfg := sources.Config{Config: sampler.Default(), Reader: sources.Files, PowerModels: l.read()}
		m, err := sources.Open(cfg, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
		l.handleRefusal(m.PowerModelsError())
		return m, l.file, j.String()
	}
	m, _, log := open(t, "")
	if log != "" {
		t.Errorf("without a file the log has %s", log)
	}
	good := string(m.PowerModels())
	// A model of the packages: 50 W at loads up to a half.
	good = strings.Replace(good, `"domains":[null,null,`, `"domains":[null,[[14,5,500000,50000000,0]],`, 1)
	m, file, log := open(t, good)
	if log != "" || string(m.PowerModels()) != good {
		t.Errorf("restored %s\nof %s\nlog %s", m.PowerModels(), good, log)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	_, file, log = open(t, good[:len(good)/2])
	if _, err := os.Stat(file); err == nil || !strings.Contains(log, "level=WARN") || !strings.Contains(log, file+".broken") {
		t.Errorf("a corrupt file: %v, log %s", err, log)
	}
	if _, err := os.Stat(file + ".broken"); err != nil {
		t.Error(err)
	}
	_, file, log = open(t, strings.Replace(good, `"machine":"`, `"machine":"another `, 1))
	if _, err := os.Stat(file); err != nil || strings.Contains(log, "level=WARN") || !strings.Contains(log, "learning the power") {
		t.Errorf("a file of another machine: %v, log %s", err, log)
	}
}
