package testkit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mete.dev/mete/internal/testkit"
)

// A recorder is a testing.TB with a deadline that records how the test ends.
type recorder struct {
	testing.TB
	deadline       time.Time
	fatal, skipped string
}

func (r *recorder) Helper() {}

func (r *recorder) Deadline() (time.Time, bool) { return r.deadline, !r.deadline.IsZero() }

func (r *recorder) Fatalf(format string, args ...any) {
	r.fatal = fmt.Sprintf(format, args...)
	panic(r)
}

func (r *recorder) Skipf(format string, args ...any) { r.skipped = fmt.Sprintf(format, args...) }

func TestEventually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		testkit.Eventually(&recorder{}, "ten calls", func() bool { calls++; return calls == 10 })
		if calls != 10 {
			t.Errorf("%d calls, want 10", calls)
		}
		start := time.Now()
		testkit.Eventually(&recorder{}, "true at once", func() bool { return true })
		if time.Since(start) != 0 {
			t.Errorf("waited %v for a condition that held", time.Since(start))
		}

		r := &recorder{deadline: time.Now().Add(time.Hour)}
		func() {
			defer func() { _ = recover() }()
			testkit.Eventually(r, "the impossible", func() bool { return false })
		}()
		if waited := time.Since(start); waited < 59*time.Minute || waited > time.Hour {
			t.Errorf("gave up after %v of an hour", waited)
		}
		if !strings.Contains(r.fatal, "the impossible") {
			t.Errorf("message %q does not name the condition", r.fatal)
		}
	})
}

func TestStage(t *testing.T) {
	for _, c := range []struct {
		env  string
		runs bool
	}{{"", false}, {"timing", true}, {"vm,timing", true}, {"vm", false}, {"all", true}} {
		t.Setenv("METE_STAGE", c.env)
		r := &recorder{}
		testkit.Stage(r, "timing", "measures real time")
		if (r.skipped == "") != c.runs {
			t.Errorf("METE_STAGE=%q: skipped %q, want it to run: %t", c.env, r.skipped, c.runs)
		}
		if !c.runs && !strings.Contains(r.skipped, "measures real time: METE_STAGE=timing") {
			t.Errorf("reason %q", r.skipped)
		}
	}
}

func TestOverlay(t *testing.T) {
	above := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(above, []byte(`{"Replace":{"a.go":"changed.go","b.go":"changed.go"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[string]string{"-trimpath": `{"Replace":{"b.go":"own.go"}}`, "-trimpath -overlay=" + above: `{"Replace":{"a.go":"changed.go","b.go":"own.go"}}`} {
		t.Setenv("GOFLAGS", flags)
		got, err := os.ReadFile(testkit.Overlay(t, map[string]string{"b.go": "own.go"}))
		if err != nil || string(got) != want {
			t.Errorf("GOFLAGS=%s: %s, %v, want %s", flags, got, err, want)
		}
	}
}
