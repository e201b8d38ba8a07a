package arch_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/arch"
)

// small is a plan that has one of everything.
const small = "# mete\n```arch\n" + `# words
unit *  | quantities
meter * | what was used
# thought
books * | closing books
fmt/a fmt/b * | two of one kind
rate * < books | prices
# hands
host | the door
hosttest < host | captured machines
collect < host | snapshots
collect/cgroup collect/net | sources
# app
app/run app/top | commands
# programs
cmd/mete | the program
cmd/agent | the agent
# planned
spool < nothing | later

never cmd/agent: k8s.io database/sql
only cmd/agent: mete.dev/mete golang.org/x/sys
` + "```\n"

func TestParse(t *testing.T) {
	plan, err := arch.Parse(small)
	if err != nil {
		t.Fatal(err)
	}
	want := []arch.Line{
		{Name: "unit", Kind: arch.Words, Pure: true, Imports: []string{}, Owns: "quantities", Number: 4},
		{Name: "rate", Kind: arch.Thought, Pure: true, Imports: []string{"books"}, Owns: "prices", Number: 9},
		{Name: "collect/net", Kind: arch.Hands, Imports: []string{}, Owns: "sources", Number: 14},
	}
	got := []arch.Line{plan.Lines[0], plan.Lines[5], plan.Lines[10]}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
	rules := []arch.Rule{
		{Program: "cmd/agent", Prefixes: []string{"k8s.io", "database/sql"}, Number: 23},
		{Program: "cmd/agent", Only: true, Prefixes: []string{"mete.dev/mete", "golang.org/x/sys"}, Number: 24},
	}
	if d := cmp.Diff(rules, plan.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ block, want string }{
		{"unit * | early", "ARCHITECTURE.md:2: \"unit\" stands before any heading"},
		{"# words\nunit | impure", `ARCHITECTURE.md:3: unit: what stands under words is pure`},
		{"# hands\nhost\nhost", "ARCHITECTURE.md:4: host has a line already, 3"},
		{"# hands\ncollect < host\nhost", "ARCHITECTURE.md:3: collect < host: only a line above can be named"},
		{"# app\napp/a\napp/b < app/a", "app packages never import each other"},
		{"# hands\nhost\n# thought\nbooks *", `heading "thought" is none of`},
		{"# feet\nhost", `heading "feet" is none of`},
		{"# hands\n* | nothing", "a line without a package"},
		{"never cmd/agent", `wants the form "never PROGRAM: PREFIXES"`},
	} {
		_, err := arch.Parse("```arch\n" + c.block + "\n```\n")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%q) = %v, want an error with %q", c.block, err, c.want)
		}
	}
	if _, err := arch.Parse("# mete\nno block\n"); err == nil {
		t.Error("Parse accepts a text without a plan")
	}
}

// whole is a tree that keeps to the small plan.
func whole() []arch.Package {
	return []arch.Package{
		{Name: "unit"},
		{Name: "meter", Imports: []string{"unit", "time"}},
		{Name: "books", Imports: []string{"meter"}},
		{Name: "fmt/a"}, {Name: "fmt/b"},
		{Name: "rate", Imports: []string{"books", "unit"}},
		{Name: "host", Imports: []string{"os", "books", "meter"}},
		{Name: "hosttest", Imports: []string{"host", "testing"}},
		{Name: "collect", Imports: []string{"host", "context"}},
		{Name: "collect/cgroup", Imports: []string{"collect", "host", "books"}},
		{Name: "collect/net"},
		{Name: "app/run", Imports: []string{"collect/cgroup", "host", "rate"}},
		{Name: "app/top"},
		{Name: "cmd/mete", Imports: []string{"app/run", "app/top", "github.com/spf13/cobra"}},
		{Name: "cmd/agent"},
	}
}

func TestCheck(t *testing.T) {
	plan, err := arch.Parse(small)
	if err != nil {
		t.Fatal(err)
	}
	if got := plan.Check(whole()); len(got) > 0 {
		t.Errorf("a tree that keeps to the plan: %q", got)
	}
	for _, c := range []struct{ from, imports, want string }{
		{"unit", "meter", "words import the words above them only"},
		{"meter", "books", "words may not import thought"},
		{"books", "rate", "packages of one kind import each other only where"},
		{"fmt/a", "fmt/b", "packages of one kind import each other only where"},
		{"books", "host", "a pure package imports pure packages only"},
		{"books", "os", "thought packages are pure, and this one does I/O"},
		{"books", "log/slog", "thought packages are pure"},
		{"unit", "net/http", "words packages are pure"},
		{"rate", "context", "thought packages are pure"},
		{"collect", "collect/net", "a parent never imports its child"},
		{"collect/net", "collect/cgroup", "packages of one kind import each other only where"},
		{"host", "collect", "packages of one kind import each other only where"},
		{"collect", "hosttest", "it is for tests only"},
		{"collect", "app/run", "hands may not import app"},
		{"app/top", "app/run", "app packages never import each other"},
		{"app/top", "cmd/mete", "app may not import programs"},
	} {
		pkgs := whole()
		for i := range pkgs {
			if pkgs[i].Name == c.from {
				pkgs[i].Imports = append(pkgs[i].Imports, c.imports)
			}
		}
		got := plan.Check(pkgs)
		if want := c.from + " imports " + c.imports + ": " + c.want; len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("Check found %q, want %q", got, want)
		}
	}
}

func TestCheckCompares(t *testing.T) {
	plan, err := arch.Parse(small)
	if err != nil {
		t.Fatal(err)
	}
	pkgs := append(whole()[1:], arch.Package{Name: "extra"}, arch.Package{Name: "spool"})
	want := []string{
		"extra has no line in ARCHITECTURE.md",
		"spool exists: move its line in ARCHITECTURE.md from planned to its kind",
		"unit has a line in ARCHITECTURE.md (4) but does not exist",
	}
	if d := cmp.Diff(want, plan.Check(pkgs)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func TestCheckLinked(t *testing.T) {
	never := arch.Rule{Program: "cmd/agent", Prefixes: []string{"k8s.io", "github.com/a"}, Number: 7}
	want := []string{
		"cmd/agent links k8s.io/client-go, which line 7 of ARCHITECTURE.md rules out",
		"cmd/agent links github.com/a, which line 7 of ARCHITECTURE.md rules out",
	}
	if d := cmp.Diff(want, never.CheckLinked([]string{"k8s.io/client-go", "github.com/ab/c", "github.com/a"})); d != "" {
		t.Errorf("never (-want +got):\n%s", d)
	}
	only := arch.Rule{Program: "cmd/agent", Only: true, Prefixes: []string{"mete.dev/mete"}, Number: 8}
	want = []string{"cmd/agent links k8s.io/client-go, which line 8 of ARCHITECTURE.md rules out"}
	if d := cmp.Diff(want, only.CheckLinked([]string{"mete.dev/mete/internal/unit", "k8s.io/client-go"})); d != "" {
		t.Errorf("only (-want +got):\n%s", d)
	}
}

func TestImpure(t *testing.T) {
	const src = `package p
import (
	"fmt"
	clock "time"
)
func f(t clock.Time) {
	go f(t)
	_ = clock.Now()
	fmt.Println(clock.Since(t))
	println("x")
	_ = fmt.Sprintf("%v", clock.Second)
}
`
	want := []string{
		"p.go:7:2: a pure package starts a goroutine",
		"p.go:8:6: a pure package uses time.Now",
		"p.go:9:2: a pure package uses fmt.Println",
		"p.go:9:14: a pure package uses time.Since",
		"p.go:10:2: a pure package prints",
	}
	got, err := arch.Impure("p.go", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Impure (-want +got):\n%s", d)
	}
	if _, err := arch.Impure("p.go", []byte("package")); err == nil {
		t.Error("Impure reads a broken file without an error")
	}
}
