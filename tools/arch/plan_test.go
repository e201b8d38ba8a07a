package arch_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/tools/arch"
)

// small is a plan with one of everything.
const small = "# mete\n```arch\n" + `# model | nouns
model/unit *  | quantities
model/usage * < model/unit | what was used
# host
host/procfmt * | formats
host/root < host/procfmt | the door
# collect | snapshots
collect/split * | processes
collect/net collect/proc < collect/split | sources
collect | the parent
# store
store/ledger/book | writing
store/ledger | its parent
# app
app/run app/top | commands
# testkit
testkit/hosttest | captured machines
# cmd
cmd/mete | the program
cmd/agent | the agent

never cmd/agent: k8s.io database/sql
only cmd/agent: mete.dev/mete golang.org/x/sys
within store testkit: database/sql example.com/driver
within store/ledger: store/ledger/book
` + "```\n"

func TestParse(t *testing.T) {
	plan, err := arch.Parse(small)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"model", "host", "collect", "store", "app", "testkit", "cmd"}, plan.Rooms); d != "" {
		t.Errorf("rooms (-want +got):\n%s", d)
	}
	want := []arch.Line{
		{Name: "model/unit", Room: 1, Pure: true, Imports: []string{}, Owns: "quantities", Number: 4},
		{Name: "host/root", Room: 2, Imports: []string{"host/procfmt"}, Owns: "the door", Number: 8},
		{Name: "collect/proc", Room: 3, Imports: []string{"collect/split"}, Owns: "sources", Number: 11},
	}
	got := []arch.Line{plan.Lines[0], plan.Lines[3], plan.Lines[6]}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("lines (-want +got):\n%s", d)
	}
	rules := []arch.Rule{
		{Package: "cmd/agent", Prefixes: []string{"k8s.io", "database/sql"}, Number: 24},
		{Package: "cmd/agent", Only: true, Prefixes: []string{"mete.dev/mete", "golang.org/x/sys"}, Number: 25},
	}
	if d := cmp.Diff(rules, plan.Rules); d != "" {
		t.Errorf("rules (-want +got):\n%s", d)
	}
	limits := []arch.Limit{
		{Prefix: "database/sql", Allowed: []string{"store", "testkit"}, Number: 26},
		{Prefix: "example.com/driver", Allowed: []string{"store", "testkit"}, Number: 26},
		{Prefix: "store/ledger/book", Allowed: []string{"store/ledger"}, Number: 27},
	}
	if d := cmp.Diff(limits, plan.Limits); d != "" {
		t.Errorf("limits (-want +got):\n%s", d)
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ block, want string }{
		{"unit * | early", "ARCHITECTURE.md:2: \"unit\" precedes all headings"},
		{"# host\nhost\nhost", "ARCHITECTURE.md:4: host has a line already, 3"},
		{"# host\n# host", "ARCHITECTURE.md:3: room host has a heading already"},
		{"# host\nhost/a < host/b\nhost/b", "ARCHITECTURE.md:3: host/a < host/b: only packages of earlier lines can be listed"},
		{"# model\nmodel/unit *\n# host\nhost/a < model/unit", "host/a < model/unit: packages of earlier rooms are not listed"},
		{"# host\ncollect/net", "collect/net is not in the room host"},
		{"# host\nhosts", "hosts is not in the room host"},
		{"# host/a\nhost", `wants the form "# ROOM | purpose"`},
		{"# | nothing", `wants the form "# ROOM | purpose"`},
		{"# host\n* | nothing", "a line without a package"},
		{"never cmd/agent", `wants the form "never PACKAGE: PREFIXES"`},
		{"within : database/sql", `wants the form "within PACKAGE: PREFIXES"`},
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

// whole is a tree that follows the small plan.
func whole() []arch.Package {
	return []arch.Package{
		{Name: "model/unit"},
		{Name: "model/usage", Imports: []string{"model/unit", "time"}},
		{Name: "host/procfmt", Imports: []string{"model/usage"}},
		{Name: "host/root", Imports: []string{"os", "host/procfmt", "model/usage"}},
		{Name: "collect", Imports: []string{"collect/proc", "host/root", "context"}},
		{Name: "collect/split"},
		{Name: "collect/net"},
		{Name: "collect/proc", Imports: []string{"collect/split"}},
		{Name: "store/ledger", Imports: []string{"store/ledger/book", "database/sql"}},
		{Name: "store/ledger/book", Imports: []string{"example.com/driver/v5"}},
		{Name: "app/run", Imports: []string{"collect", "collect/net", "store/ledger"}},
		{Name: "app/top"},
		{Name: "testkit/hosttest", Imports: []string{"host/root", "testing", "database/sql/driver"}},
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
		t.Errorf("a tree that follows the plan: %q", got)
	}
	for _, c := range []struct{ from, imports, want string }{
		{"model/unit", "model/usage", "packages of one room import each other only where"},
		{"model/usage", "host/procfmt", "the room host is below the room model"},
		{"collect/split", "host/root", "a pure package imports pure packages only"},
		{"collect/split", "os", "a pure package does no I/O"},
		{"model/usage", "log/slog", "a pure package does no I/O"},
		{"model/unit", "net/http", "a pure package does no I/O"},
		{"collect/split", "context", "a pure package does no I/O"},
		{"collect/net", "collect", "a child never imports its parent"},
		{"collect/proc", "collect/net", "packages of one room import each other only where"},
		{"collect", "testkit/hosttest", "the room testkit is below the room collect"},
		{"collect", "app/run", "the room app is below the room collect"},
		{"app/top", "app/run", "packages of one room import each other only where"},
		{"app/top", "cmd/mete", "the room cmd is below the room app"},
		{"app/run", "store/ledger/book", "line 27 allows it within store/ledger only"},
		{"app/run", "database/sql", "line 26 allows it within store, testkit only"},
		{"cmd/mete", "example.com/driver/v5", "line 26 allows it within store, testkit only"},
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
	pkgs := append(whole()[1:], arch.Package{Name: "store/extra"})
	want := []string{
		"store/extra has no line in ARCHITECTURE.md",
		"model/unit has a line in ARCHITECTURE.md (4) but does not exist",
	}
	if d := cmp.Diff(want, plan.Check(pkgs)); d != "" {
		t.Errorf("findings (-want +got):\n%s", d)
	}
}

func TestCheckLinked(t *testing.T) {
	never := arch.Rule{Package: "cmd/agent", Prefixes: []string{"k8s.io", "github.com/a"}, Number: 7}
	want := []string{
		"cmd/agent links k8s.io/client-go, which line 7 of ARCHITECTURE.md rules out",
		"cmd/agent links github.com/a, which line 7 of ARCHITECTURE.md rules out",
	}
	if d := cmp.Diff(want, never.CheckLinked([]string{"k8s.io/client-go", "github.com/ab/c", "github.com/a"})); d != "" {
		t.Errorf("never (-want +got):\n%s", d)
	}
	only := arch.Rule{Package: "cmd/agent", Only: true, Prefixes: []string{"mete.dev/mete"}, Number: 8}
	want = []string{"cmd/agent links k8s.io/client-go, which line 8 of ARCHITECTURE.md rules out"}
	if d := cmp.Diff(want, only.CheckLinked([]string{"mete.dev/mete/internal/model/unit", "k8s.io/client-go"})); d != "" {
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
		t.Error("Impure parses a broken file without an error")
	}
}
