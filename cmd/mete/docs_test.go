package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/app/check"
	"mete.dev/mete/internal/app/config"
	"mete.dev/mete/internal/app/doctor"
	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/settings"
)

//go:generate go test . -run=^Test(Reference|Configuration) -count=1 -update

const reference = "../../docs/cli.md"

var update = flag.Bool("update", false, "rewrite docs/cli.md")

// programs are those of mete-server.
var programs = []config.Program{
	{Command: "mete server", Settings: server.Settings},
	{Command: "mete up", Settings: up.Settings},
	{Command: "mete-agent", Settings: func() *settings.Set { c := agent.Default(); return c.Settings() }},
}

// allCommands returns the program with all commands, including those of mete-server.
func allCommands() *cobra.Command {
	far := map[string]*cobra.Command{"up": up.Command(nil), "server": server.Command(), "check": check.Command(), "config": config.Command(programs...), "doctor": doctor.Command(server.Settings, up.Settings)}
	return commandWith(func(name string) *cobra.Command { return far[name] })
}

// TestFar compares mete's help about the commands of mete-server with their own help.
func TestFar(t *testing.T) {
	root := command()
	for _, c := range []*cobra.Command{up.Command(nil), server.Command(), check.Command(), config.Command(programs...), doctor.Command(server.Settings, up.Settings)} {
		if found, _, err := root.Find([]string{c.Name()}); err != nil || found.Short != c.Short || found == root {
			t.Errorf("%s: mete says %q, mete-server %q", c.Name(), found.Short, c.Short)
		}
		if len(serverCommands) != 5 {
			t.Errorf("mete names %d commands of mete-server", len(serverCommands))
		}
	}
	for line, want := range map[string]bool{
		"up": true, "up --help": true, "help up": true, "--help server": true, "__complete up --l": true, "__complete server ": true,
		"": false, "run -- up": false, "help": false, "help run": false, "top": false, "__complete u": false, "__complete up": false, "--help": false,
	} {
		args := strings.Split(line, " ")
		if line == "" {
			args = nil
		}
		if isServerCommand(args) != want {
			t.Errorf("mete %s: for mete-server: %v", line, !want)
		}
	}
}

// TestReference compares docs/cli.md with the commands.
func TestReference(t *testing.T) {
	t.Setenv("METE_HOST_VSOCK", "true") // the default of METE_HOST_VSOCK
	want := page()
	if *update {
		if err := os.WriteFile(reference, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/cli.md is stale; go generate ./cmd/mete rewrites it (-want +have):\n%s", diff)
	}
}

// TestConfiguration compares docs/config.md with the settings.
func TestConfiguration(t *testing.T) {
	for _, name := range []string{"METE_STATE", "METE_SOCKET", "METE_SERVER", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, "")
	}
	t.Setenv("METE_HOST_VSOCK", "true") // the default of METE_HOST_VSOCK
	const file = "../../docs/config.md"
	want := config.Reference(programs...)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/config.md is stale; go generate ./cmd/mete rewrites it (-want +have):\n%s", diff)
	}
}

// TestExamples checks the examples against the flags and arguments.
func TestExamples(t *testing.T) {
	for _, c := range leaves(allCommands().Commands()) {
		if c.Example == "" {
			t.Errorf("mete %s has no examples", c.Name())
		}
		for line := range strings.Lines(c.Example) {
			args := shellWords(line)
			if args[0] != "mete" {
				continue
			}
			found, rest, err := allCommands().Find(args[1:])
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || found.Name() != c.Name() && found.Parent().Name() != c.Name() {
				t.Errorf("%s: %v", strings.TrimSpace(line), err)
			}
		}
	}
}

// shellWords splits a line like a shell, up to a pipe or a redirection; text in single quotes is
// one word.
func shellWords(line string) (list []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			list = append(list, part)
			continue
		}
		for w := range strings.FieldsSeq(part) {
			if w == "|" || w == ">" {
				return list
			}
			list = append(list, w)
		}
	}
	return list
}

// leaves returns the commands that can be run, without those that cobra adds.
func leaves(commands []*cobra.Command) (out []*cobra.Command) {
	for _, c := range commands {
		switch {
		case c.Name() == "help" || c.Name() == "completion":
		case c.HasAvailableSubCommands():
			if c.Args != nil {
				out = append(out, c) // can be run without a subcommand
			}
			out = append(out, leaves(c.Commands())...)
		default:
			out = append(out, c)
		}
	}
	return out
}

const preface = `# Command line

<!-- Made from the commands themselves by: go generate ./cmd/mete -->

What %s says, as one page. In a clone of the source, %s is mete.
%s
## Values of flags

| value | meaning |
|---|---|
%s
## Exit codes

mete run ends as its command does. All other commands end with one of these:

| code | meaning |
|---|---|
`

// flagValues are the words that stand for the values of flags, the same one for the same thing in all
// commands.
var flagValues = []struct{ name, meaning string }{
	{"ADDRESS", "address and port, such as 127.0.0.1:9797"},
	{"CLUSTER", "name of a cluster"},
	{"COLUMN", "column of a table; several as COLUMNS, with commas"},
	{"DEVICE", "device file"},
	{"DIMENSION", "key by which use is grouped: the help of mete usage lists them"},
	{"DIR", "directory"},
	{"DURATION", "length of time: 500ms, 10s, 90m, 24h"},
	{"FILE", "file; - is standard input or output"},
	{"FORM", "form of the output"},
	{"HOST", "host name or address"},
	{"LEDGER", "database of a ledger: a file, or postgres://USER@HOST/NAME"},
	{"MODE, POLICY, READER, RESOLUTION, ROLE, SCOPE, VERSION", "a choice: the help of the flag lists the words"},
	{"N", "number"},
	{"NAME", "name of a job, or of a person"},
	{"NODE", "node, by its name or id"},
	{"PATH", "file or directory"},
	{"PERIOD", "1h or 1d"},
	{"PROGRAM", "name of a program"},
	{"PROJECT", "name of a project"},
	{"SIZE", "size in bytes: K M G T are powers of 1000, Ki Mi Gi Ti of 1024"},
	{"TEXT", "any text"},
	{"TIME", "instant: " + v1.TimeForms + "; one without a zone is in the zone of this machine, and mete usage counts ages from the end of the present minute"},
	{"TOKEN", "token, as mete token create prints it"},
	{"URL", "address of a server, such as https://mete.example.org:9797"},
	{"A=B", "two of these, as DOMAIN=WATTS"},
}

// TestFlagValues checks that the value of each flag of each command has a name, and one of
// [flagValues].
func TestFlagValues(t *testing.T) {
	words := map[string]bool{"COLUMNS": true, "CAP": true}
	for _, v := range flagValues {
		for w := range strings.SplitSeq(v.name, ", ") {
			words[w] = true
		}
	}
	pair := regexp.MustCompile(`^[A-Z]+=[A-Z]+$`)
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if value, _ := pflag.UnquoteUsage(f); value != "" && !words[value] && !pair.MatchString(value) {
				t.Errorf("%s --%s %s: no word for values of flags", c.CommandPath(), f.Name, value)
			}
		})
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(allCommands())
	agent := agent.Default()
	for _, s := range agent.Settings().All() {
		if s.Arg != "" && !words[s.Arg] && !pair.MatchString(s.Arg) {
			t.Errorf("mete-agent --%s %s: no word for values of flags", s.Name, s.Arg)
		}
	}
}

// codes are the exit codes of all commands except mete run.
var codes = []struct {
	code    int
	meaning string
}{
	{cli.OK, "success; also if a signal ended a command that runs until it is stopped"},
	{cli.Failed, "failure, as described by the error"},
	{cli.Invalid, "the command line or a file is invalid, or a port is in use"},
	{cli.NotFound, "the requested object does not exist"},
	{cli.Denied, "a permission is missing"},
	{cli.Unsupported, "this machine or its kernel does not support it"},
	{cli.Unavailable, "unavailable at present; a retry may succeed"},
	{cli.Interrupted, "a signal ended the command before it was done"},
}

// page writes the reference.
func page() string {
	var b, list, values strings.Builder
	commands := slices.DeleteFunc(allCommands().Commands(), func(c *cobra.Command) bool { return !c.IsAvailableCommand() || c.Name() == "help" })
	group := ""
	for _, c := range commands {
		if g := cli.GroupTitle(c); g != group {
			group = g
			fmt.Fprintf(&list, "\n%s:\n\n", g)
		}
		fmt.Fprintf(&list, "- [%s](#%s): %s\n", c.CommandPath(), strings.ReplaceAll(c.CommandPath(), " ", "-"), lower(c.Short))
	}
	list.WriteString("- [mete-agent](#mete-agent): measure this machine without showing it\n")
	for _, v := range flagValues {
		fmt.Fprintf(&values, "| `%s` | %s |\n", v.name, v.meaning)
	}
	fmt.Fprintf(&b, preface, "`mete COMMAND --help`", "`go run ./cmd/mete`", &list, &values)
	for _, c := range codes {
		fmt.Fprintf(&b, "| %d | %s |\n", c.code, c.meaning)
	}
	for _, c := range commands {
		section(&b, c)
	}
	agentSection(&b)
	return b.String()
}

// section writes the section of a command.
func section(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n\n", c.CommandPath())
	if subs := leaves(c.Commands()); len(subs) > 0 {
		b.WriteString(prose(cmp.Or(c.Long, c.Short+".")))
		if c.Args != nil && c.Example != "" {
			usageSection(b, c)
		}
		for _, sub := range subs {
			section(b, sub)
		}
		return
	}
	if c.HasAvailableSubCommands() {
		// Commands that cobra adds: one per shell.
		fmt.Fprintf(b, "%s.\n\n", c.Short)
		for _, sub := range c.Commands() {
			fmt.Fprintf(b, "    %s\n", sub.CommandPath())
		}
		return
	}
	b.WriteString(prose(c.Long))
	usageSection(b, c)
}

// usageSection writes the usage of a command.
func usageSection(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n    %s\n\nExamples:\n\n", c.UseLine())
	for line := range strings.Lines(c.Example + "\n") {
		b.WriteString("  " + line)
	}
	b.WriteString("\n| flag | meaning | default |\n|---|---|---|\n")
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		flagRow(b, name, value, usage, f.DefValue)
	})
}

func agentSection(b *strings.Builder) {
	b.WriteString("\n## mete-agent\n\nThis is a program of its own, to stay small.\n\n" + prose(agent.Long) +
		"\n    mete-agent [flags]\n\n| flag | meaning | default |\n|---|---|---|\n")
	cfg := agent.Default()
	for _, s := range cfg.Settings().All() {
		flagRow(b, "--"+s.Name, s.Arg, s.Help, s.Default())
	}
}

// flagRow writes a row of a table of flags; a flag that is off or empty by default has no default
// value.
func flagRow(b *strings.Builder, name, value, usage, def string) {
	if value != "" {
		name += " " + value
	}
	switch def {
	case "", "false", "[]":
		def = ""
	default:
		def = "`" + def + "`"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s |\n", strings.ReplaceAll(name, "|", `\|`), strings.ReplaceAll(usage, "|", `\|`), def)
}

// prose converts a help text to Markdown: indented or marked lines become code blocks.
func prose(long string) string {
	var b strings.Builder
	set := false
	for line := range strings.Lines(long + "\n") {
		if apart := strings.HasPrefix(line, "  ") || strings.HasPrefix(line, "– "); apart != set && line != "\n" {
			set = apart
			if !strings.HasSuffix(b.String(), "\n\n") {
				b.WriteString("\n")
			}
		}
		if set && line != "\n" {
			line = "    " + strings.TrimPrefix(line, "  ")
		}
		b.WriteString(line)
	}
	return b.String()
}

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }
