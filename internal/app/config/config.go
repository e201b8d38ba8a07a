// Package config implements the command mete config, which shows the configuration of a program
// and where each value is from, and the reference of all settings.
package config

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/settings"
	"mete.dev/mete/internal/x/text"
)

// A Program is a program with a section in the file.
type Program struct {
	Command  string // as "mete server"
	Settings func() *settings.Set
}

const long = `Show the configuration with which a program would start now, and where each value
is from: a flag, a variable of the environment, a line of the file, or the default.
The first of these that has a value counts. docs/config.md lists all settings.

The file is /etc/mete/mete.yaml, if it exists, or that of --config or METE_CONFIG. It
is checked as the program checks it: an unknown key, a repeated key and a value of
another type are errors, with the line. Only root and the user may be able
to write it. Secrets are not shown.

-o yaml prints a section as a file that gives the same configuration.`

// Command returns mete config, with a command for each program.
func Command(programs ...Program) *cobra.Command {
	cmd := &cobra.Command{
		Use: "config", Short: "Show the configuration, and where each value is from", Long: long,
		Example: "  mete config server\n  mete config agent --config new.yaml -o yaml",
		Args:    cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, p := range programs {
		cmd.AddCommand(p.command())
	}
	return cmd
}

func (p Program) command() *cobra.Command {
	set := p.Settings()
	var form string
	cmd := &cobra.Command{
		Use:   set.Section,
		Short: "Show the configuration of " + p.Command,
		Long: "Show the configuration of " + p.Command + ", and where each value is from. It takes the flags\n" +
			"of that command, to show their effect.",
		Example: "  mete config " + set.Section + "\n  mete config " + set.Section + " --config new.yaml -o yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("-o", form, "text", "json", "yaml"); err != nil {
				return err
			}
			if err := set.Load(os.Getenv); err != nil {
				return err
			}
			return write(cmd.OutOrStdout(), form, set)
		},
	}
	cli.Settings(cmd, set)
	cmd.Flags().StringVarP(&form, "output", "o", "text", "print as `FORM`: text, json or yaml")
	cli.Choices(cmd, "output", "text", "json", "yaml")
	return cmd
}

// A value is a setting as it is printed.
type value struct {
	Key   string `json:"key"`
	Value any    `json:"value"`          // a text, or a list of texts
	From  string `json:"from"`           // default, file, environment or flag
	Name  string `json:"name,omitempty"` // of the flag or variable, or the path of the file
	Line  int    `json:"line,omitempty"` // of the file
}

// write prints a configuration.
func write(w io.Writer, form string, set *settings.Set) error {
	switch form {
	case "yaml":
		return writeYAML(w, set)
	case "json":
		all := []value{}
		for _, s := range set.All() {
			if !s.FlagOnly {
				o := s.Origin()
				all = append(all, value{s.Key(), valueOf(s), o.Kind.String(), o.Name, o.Line})
			}
		}
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"section": set.Section, "file": set.Path(), "settings": all})
	}
	file := "no file"
	if set.Path() != "" {
		file = set.Path()
	}
	fmt.Fprintf(w, "section %s, %s\n", set.Section, file)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KEY\tVALUE\tFROM")
	for _, s := range set.All() {
		if s.FlagOnly {
			continue
		}
		shown := strings.Join(s.Texts(), ", ")
		if shown == "" {
			shown = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Key(), text.Clean(shown), text.Clean(s.Origin().String()))
	}
	return t.Flush()
}

// valueOf is a setting's value for JSON and YAML.
func valueOf(s *settings.Setting) any {
	texts := s.Texts()
	if s.Kind == settings.List {
		return append([]string{}, texts...)
	}
	t := strings.Join(texts, "")
	switch s.Kind {
	case settings.Switch:
		return t == "true"
	case settings.Number:
		return json.Number(t)
	}
	return t
}

// writeYAML prints what differs from the defaults as a section of a file.
func writeYAML(w io.Writer, set *settings.Set) error {
	var section yaml.MapSlice
	for _, s := range set.All() {
		if !s.InFile || s.Origin().Kind == settings.Default {
			continue
		}
		v := valueOf(s)
		if n, ok := v.(json.Number); ok {
			i, err := n.Int64()
			if err != nil {
				return err
			}
			v = i
		}
		section = append(section, yaml.MapItem{Key: s.Key(), Value: v})
	}
	if len(section) == 0 {
		_, err := fmt.Fprintf(w, "%s:\n", set.Section)
		return err
	}
	b, err := yaml.Marshal(yaml.MapSlice{{Key: set.Section, Value: section}})
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}

// Reference returns docs/config.md: all settings of all programs.
func Reference(programs ...Program) string {
	var b strings.Builder
	b.WriteString(`# Configuration

Every setting of a program is a flag, a variable of the environment, and a key in its section of one file. The first of
these that has a value counts: flag, environment, file, default. This page is made from the table in the code.

    # /etc/mete/mete.yaml
    server:
      listen: ":9797"
      name: [mete.example.org]
      keep_minutes: 14d
    agent:
      server: https://mete.example.org:9797
      token_file: /etc/mete/token

` + "`mete config server` shows the configuration of `mete server`, and where each value is from; so do `mete config up` and `mete\nconfig agent`. `-o yaml` prints it as a file." + `

The file is ` + "`" + settings.DefaultFile + "`" + `, if it exists, or the one that ` + "`--config` or `METE_CONFIG`" + ` names. It is strict: an
unknown key, a repeated key, or a value of another type is an error, with file, line and column, and the
program does not start. Only root and the program's user may be able to write it. It holds no secrets: it names the
files that hold them.

A list is written as ` + "`[a, b]`" + ` or in lines with a hyphen, in a variable with commas, and as a flag that is repeated. Durations have a
unit (` + "`500ms`, `10s`, `7d`" + ` where days are possible), sizes too (` + "`512MiB`, `20G`" + `).

` + "`METE_STATE`" + ` is the state directory of all programs (default: ` + "`/var/lib/mete`" + ` of root, else ` + "`~/.local/state/mete`" + `), and
` + "`agent` and `server`" + ` in it are the defaults of ` + "`state`" + `. The defaults below are those of root. ` + "`METE_TOKEN` and `METE_UPSTREAM_TOKEN`" + `
hold tokens; in the file, ` + "`token_file` and `upstream_token: [\"@FILE\"]`" + ` name the files that hold them.
`)
	for _, p := range programs {
		set := p.Settings()
		fmt.Fprintf(&b, "\n## %s: `%s`\n\n| key | variable | type | default | |\n|---|---|---|---|---|\n", set.Section, p.Command)
		for _, s := range set.All() {
			if s.FlagOnly {
				continue
			}
			key := "`" + s.Key() + "`"
			if !s.InFile {
				key = "(flag `--" + s.Name + "`)"
			}
			def := s.Default()
			if def != "" {
				def = "`" + def + "`"
			}
			help := s.Help
			if c := s.Choices(); c != nil && !strings.Contains(help, strings.Join(c, ", ")) {
				help += ": one of " + strings.Join(c, ", ")
			}
			env := s.Env
			if env != "" {
				env = "`" + env + "`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", key, env, s.Kind, def, strings.ReplaceAll(help, "|", "\\|"))
		}
	}
	return b.String()
}
