package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// named makes stages; the first letter of a name selects the schedule.
func named(names ...string) (list []stage) {
	for _, name := range names {
		w := map[byte]schedule{'c': commit, 'l': landing, 'r': release}[name[0]]
		list = append(list, stage{name: name, what: "about " + name, when: w, budget: time.Minute})
	}
	return list
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		fast, all bool
		only      string
		want      string
	}{
		{false, false, "", "c1 l1 c2"},
		{true, false, "", "c1 c2"},
		{false, true, "", "c1 l1 r1 c2 r2"},
		{false, false, "c2,c1", "c1 c2"},
		{false, true, "r1", "r1"},
		{true, false, "r1", "r1"},
	} {
		chosen, err := choose(named("c1", "l1", "r1", "c2", "r2"), c.fast, c.all, c.only)
		var got []string
		for _, s := range chosen {
			got = append(got, s.name)
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("choose(fast %t, all %t, only %q) = %q, %v; want %s", c.fast, c.all, c.only, got, err, c.want)
		}
	}
	if _, err := choose(named("c1"), false, false, "c1,nothing"); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("choose of an unknown stage: %v, want an error that names it", err)
	}
	if _, err := choose(named("c1"), true, true, ""); err == nil {
		t.Error("choose takes -fast and -all at once")
	}
}

func TestRun(t *testing.T) {
	stages := named("c good", "c bad", "c skipped", "c silent")
	stages[0].run = func(sh *shell) error { return sh.do("echo", "unseen") }
	stages[1].run = func(sh *shell) error { return sh.do("sh", "-c", "echo the reason; exit 3") }
	stages[2].run = func(*shell) error { return skip("not here") }
	stages[3].run = func(sh *shell) error { return sh.quiet("echo", "a.go") }
	var out bytes.Buffer
	if failed := run(t.Context(), stages, nil, &out); failed != 2 {
		t.Errorf("run = %d failed, want 2", failed)
	}
	got := out.String()
	for _, want := range []string{
		"ok   c good ", "the reason\nFAIL c bad ", "sh -c echo the reason; exit 3: exit status 3\n",
		"skip c skipped ", ": not here\n", "a.go\nFAIL c silent ", "\n1 skipped\n1 passed, 2 failed\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the output lacks %q:\n%s", want, got)
		}
	}
	if strings.Contains(got, "unseen") {
		t.Errorf("the output includes the output of a good stage:\n%s", got)
	}
	if !strings.HasSuffix(got, "failed\n") {
		t.Errorf("the output does not end with the count:\n%s", got)
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stages := named("c first", "c second")
	stages[0].run = func(sh *shell) error { return sh.do("sleep", "60") }
	stages[1].run = func(*shell) error { t.Error("a stage ran after the interruption"); return nil }
	var out bytes.Buffer
	if failed := run(ctx, stages, nil, &out); failed != 1 {
		t.Errorf("run = %d failed, want 1:\n%s", failed, out.String())
	}
}

// A budget is displayed but not enforced.
func TestResult(t *testing.T) {
	s := stage{name: "s", budget: 10 * time.Second}
	for _, c := range []struct {
		err    error
		wall   time.Duration
		failed bool
		over   bool
	}{
		{nil, 9 * time.Second, false, false},
		{nil, time.Hour, false, true},
		{errors.New("no"), time.Second, true, false},
		{skip("no"), time.Second, false, false},
	} {
		r := result{stage: s, err: c.err, wall: c.wall, cpu: time.Hour}
		if got := r.String(); r.failed() != c.failed || strings.Contains(got, "OVER") != c.over {
			t.Errorf("after %v with %v: %s; want failed %t, over %t", c.wall, c.err, got, c.failed, c.over)
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

// Documents and CI name existing stages.
func TestStages(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range stages() {
		if seen[s.name] || s.what == "" || s.budget <= 0 || s.run == nil {
			t.Errorf("stage %q is a duplicate, or lacks a field", s.name)
		}
		seen[s.name] = true
		for _, p := range s.needs {
			if fileOf[p] == "" {
				t.Errorf("stage %s needs package %s, which has no entry in fileOf", s.name, p)
			}
		}
	}
	tests, err := stagedTests("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range tests {
		if !seen[test.stage] {
			t.Errorf("%s %s is in stage %q, which the gate does not have", test.dir, test.name, test.stage)
		}
	}
}

// Only the fuzzer's own deadline is retried; a failing input is not.
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
