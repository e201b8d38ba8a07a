package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite docs/testing.md")

// tree writes files below a new directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestStagedTests(t *testing.T) {
	root := tree(t, map[string]string{
		"internal/x/x_test.go": `package x
import "mete.dev/mete/internal/testkit"
import db "mete.dev/mete/internal/testkit/db"
func TestDirect(t *testing.T) { testkit.Stage(t, "timing", "measures a delay") }
func TestSub(t *testing.T) { t.Run("slow", func(t *testing.T) { testkit.Stage(t, "vm", "boots") }) }
func TestHelped(t *testing.T) { helper(t) }
func TestPassed(t *testing.T) { t.Run("a", helper) }
func TestOther(t *testing.T) { db.Start(t) }
func TestMethod(t *testing.T) { var r rig; r.load() }
func TestPlain(t *testing.T) { plain(t) }
func Testimony(t *testing.T) { testkit.Stage(t, "timing", "is not a test") }
func helper(t *testing.T) { testkit.Stage(t, "accuracy", "compares with an oracle") }
func TestVariable(t *testing.T) { helper := 1; _ = helper }
func (r rig) load() { testkit.Stage(r, "torture", "kills") }
func plain(t *testing.T) { t.load() ; x.Start(t) }
`,
		"internal/testkit/db/db.go": `package db
import "mete.dev/mete/internal/testkit"
func Start(t testing.TB) { testkit.Stage(t, "postgres", "starts PostgreSQL") }
`,
		"internal/x/x.go":            "package x\nfunc plain() { helper() }",
		"internal/y/testdata/bad.go": "not Go",
	})
	tests, err := stagedTests(root)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, s := range tests {
		fmt.Fprintf(&got, "%s %s %s: %s\n", s.stage, s.dir, s.name, s.why)
	}
	const want = `accuracy ./internal/x TestHelped: compares with an oracle
accuracy ./internal/x TestPassed: compares with an oracle
postgres ./internal/x TestOther: starts PostgreSQL
timing ./internal/x TestDirect: measures a delay
torture ./internal/x TestMethod: kills
torture ./internal/x TestPlain: kills
vm ./internal/x TestSub: boots
`
	if got.String() != want {
		t.Errorf("got:\n%swant:\n%s", &got, want)
	}
	pattern, packages := only(tests, "accuracy")
	if pattern != "^(TestHelped|TestPassed)$" || strings.Join(packages, " ") != "./internal/x" {
		t.Errorf("only(accuracy) = %s, %v", pattern, packages)
	}
	bad := tree(t, map[string]string{"x_test.go": "package x\nfunc TestA(t *testing.T) { testkit.Stage(t, stage, \"why\") }"})
	if _, err := stagedTests(bad); err == nil || !strings.Contains(err.Error(), "x_test.go:2") {
		t.Errorf("a stage that is not a constant: %v, want an error with file and line", err)
	}
}

// TestDocument checks the table of docs/testing.md against the code.
func TestDocument(t *testing.T) {
	const file, begin, end = "../../docs/testing.md", "<!-- begin staged -->\n", "<!-- end staged -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, whole := strings.Cut(rest, end)
	if !ok || !whole {
		t.Fatalf("%s lacks the lines %q and %q", file, begin, end)
	}
	tests, err := stagedTests("../..")
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("\n| stage | test | why |\n|---|---|---|\n")
	for _, s := range tests {
		fmt.Fprintf(&table, "| %s | %s %s | %s |\n", s.stage, strings.TrimPrefix(s.dir, "./"), s.name, s.why)
	}
	table.WriteString("\n")
	want := before + begin + table.String() + end + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("the table of %s is stale; run go generate ./tools/gate", file)
	}
}

func TestAffected(t *testing.T) {
	list := []string{module + "internal/a fmt", module + "internal/b " + module + "internal/a", module + "internal/c " + module + "internal/b", module + "cmd/d"}
	goIn := func(dir string) bool { return strings.Count(dir, "/") == 1 }
	for _, c := range []struct{ files, want string }{
		{"internal/a/a.go", "./internal/a ./internal/b"},
		{"internal/b/testdata/x/y.txt", "./internal/b ./internal/c"},
		{"docs/cli.md", ""},
		{"go.mod", "./..."},
	} {
		if got := strings.Join(affected(strings.Fields(c.files), list, goIn), " "); got != c.want {
			t.Errorf("affected(%s) = %s, want %s", c.files, got, c.want)
		}
	}
}

func TestVerdicts(t *testing.T) {
	var out bytes.Buffer
	v := &verdicts{to: &out}
	for _, part := range []string{"?   \tmete/x\t[no test files]\nok", "  \tmete/a\t0.1s\n--- FAIL: TestX\nFAIL\nFAIL\tmete/b\t2s\n", "ok  \tmete/c"} {
		if n, err := v.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	if got := out.String(); got != "ok  \tmete/a\t0.1s\nFAIL\tmete/b\t2s\n" {
		t.Errorf("passed on %q", got)
	}
}

// The output of go test is kept completely, both stdout and stderr.
func TestShellKeepsOutput(t *testing.T) {
	root := tree(t, map[string]string{
		"go.mod": "module x\ngo 1.24\n",
		"x_test.go": `package x
import ("fmt"; "os"; "testing")
func TestX(t *testing.T) {
	for i := range 100 { fmt.Println("line", i); fmt.Fprintln(os.Stderr, "error", i) }
	t.Fatal("the reason")
}
`})
	t.Chdir(root)
	var progress bytes.Buffer
	sh := shell{ctx: t.Context(), progress: &progress, env: []string{"GOFLAGS=", "GOWORK=off"}}
	err := sh.test("-v", ".")
	out := sh.out.String()
	if err == nil || !strings.Contains(out, "the reason") || !strings.Contains(out, "line 99\n") || !strings.Contains(out, "error 99\n") {
		t.Errorf("%v; kept:\n%s", err, out)
	}
	if !strings.HasPrefix(progress.String(), "FAIL\tx\t") {
		t.Errorf("progress %q", &progress)
	}
}

func TestCPUController(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("memory cpu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const v1 = "30 25 0:26 / /sys/fs/cgroup/cpuacct rw - cgroup none rw,cpuacct\n31 25 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup none rw,cpu\n"
	for _, c := range []struct {
		text, dir string
		v2, ok    bool
	}{
		{v1, "/sys/fs/cgroup/cpu", false, true},
		{"32 25 0:28 / " + root + " rw - cgroup2 cgroup2 rw\n", root, true, true},
		{"32 25 0:28 / /nowhere rw - cgroup2 cgroup2 rw\n", "", false, false},
	} {
		file := filepath.Join(root, "mountinfo")
		if err := os.WriteFile(file, []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		dir, v2, err := cpuController(file)
		if dir != c.dir || v2 != c.v2 || (err == nil) != c.ok {
			t.Errorf("cpuController(%q) = %s, %t, %v; want %s, %t", c.text, dir, v2, err, c.dir, c.v2)
		}
	}
}
