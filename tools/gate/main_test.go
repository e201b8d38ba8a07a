package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func named(names ...string) (list []stage) {
	for _, name := range names {
		full := strings.HasPrefix(name, "full")
		list = append(list, stage{name: name, what: "about " + name, full: full, budget: time.Minute})
	}
	return list
}

func TestChoose(t *testing.T) {
	all := func() []stage { return named("a", "b", "full1", "c", "full2") }
	for _, c := range []struct {
		fast bool
		only string
		want string
	}{
		{false, "", "a b full1 c full2"},
		{true, "", "a b c"},
		{false, "c,a", "a c"},
		{true, "full1", "full1"},
	} {
		chosen, err := choose(all(), c.fast, c.only)
		var got []string
		for _, s := range chosen {
			got = append(got, s.name)
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("choose(fast %t, only %q) = %q, %v; want %s", c.fast, c.only, got, err, c.want)
		}
	}
	if _, err := choose(all(), false, "a,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("choose of an unknown stage: %v, want an error that names it", err)
	}
}

func TestRun(t *testing.T) {
	stages := named("good", "bad", "skipped", "silent")
	stages[0].run = func(sh *shell) error { return sh.do("echo", "unseen") }
	stages[1].run = func(sh *shell) error { return sh.do("sh", "-c", "echo the reason; exit 3") }
	stages[2].run = func(*shell) error { return skip("not here") }
	stages[3].run = func(sh *shell) error { return sh.quiet("echo", "a.go") }
	var out bytes.Buffer
	if failed := run(t.Context(), stages, &out); failed != 2 {
		t.Errorf("run = %d failed, want 2", failed)
	}
	got := out.String()
	for _, want := range []string{
		"ok   good ", "the reason\nFAIL bad ", "sh -c echo the reason; exit 3: exit status 3\n",
		"skip skipped ", ": not here\n", "a.go\nFAIL silent ", "\n1 skipped\n1 passed, 2 failed\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the output lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "unseen") {
		t.Errorf("the output shows what a good stage printed:\n%s", got)
	}
	if !strings.HasSuffix(got, "failed\n") {
		t.Errorf("the output does not end with the count:\n%s", got)
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stages := named("first", "second")
	stages[0].run = func(sh *shell) error { return sh.do("sleep", "60") }
	stages[1].run = func(*shell) error { t.Error("a stage ran after the interruption"); return nil }
	var out bytes.Buffer
	if failed := run(ctx, stages, &out); failed != 1 {
		t.Errorf("run = %d failed, want 1:\n%s", failed, out.String())
	}
}

func TestJudge(t *testing.T) {
	s := stage{name: "s", budget: 10 * time.Second}
	for _, c := range []struct {
		err       error
		wall, cpu time.Duration
		failed    bool
		over      bool
	}{
		{nil, 9 * time.Second, 12 * time.Second, false, false},
		{nil, time.Hour, 30 * time.Second, false, true},
		{nil, 20 * time.Second, 31 * time.Second, true, true},
		{errors.New("no"), time.Second, time.Second, true, false},
		{skip("no"), time.Second, time.Second, false, false},
	} {
		r := judge(s, c.err, c.wall, c.cpu)
		if got := r.String(); r.failed() != c.failed || strings.Contains(got, "OVER") != c.over {
			t.Errorf("judge(%v, wall %v, cpu %v): %s; want failed %t, over %t", c.err, c.wall, c.cpu, got, c.failed, c.over)
		}
	}
}

func TestShellCountsChildren(t *testing.T) {
	sh := shell{ctx: t.Context(), env: []string{"GREETING=hello"}}
	out, err := sh.output("sh", "-c", `i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; printf %s "$GREETING"`)
	if err != nil || out != "hello" {
		t.Errorf("output = %q, %v; want hello", out, err)
	}
	if sh.cpu <= 0 {
		t.Errorf("CPU time = %v, want more than 0", sh.cpu)
	}
}

// The stages stand in documents and in CI by name.
func TestStagesAreNamedOnce(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range stages() {
		if seen[s.name] || s.what == "" || s.budget <= 0 || s.run == nil {
			t.Errorf("stage %q is there twice, or not whole", s.name)
		}
		seen[s.name] = true
	}
}

// Only what Go's fuzzer makes up is run again; what an input did is not.
func TestLateStop(t *testing.T) {
	const head = "fuzz: elapsed: 10s, execs: 455138 (44279/sec), new interesting: 27 (total: 203)\n--- FAIL: FuzzDevice (10.11s)\n"
	for _, c := range []struct {
		name, out string
		want      bool
	}{
		{"its own deadline", head + "    context deadline exceeded\nFAIL\nexit status 1\n", true},
		{"a failing input", head + "    --- FAIL: FuzzDevice (0.00s)\n        device_test.go:7: wrong\n\n    Failing input written to testdata/fuzz/x\nFAIL\n", false},
		{"a test's own deadline", head + "    device_test.go:7: context deadline exceeded\nFAIL\n", false},
		{"more after it", head + "    context deadline exceeded\n    Failing input written to testdata/fuzz/x\nFAIL\n", false},
		{"nothing", "PASS\n", false},
	} {
		if got := lateStop(c.out); got != c.want {
			t.Errorf("%s: got %v", c.name, got)
		}
	}
}
