// Package run implements the commands mete run, which runs a command as a metered job, and mete
// report, which prints a job's report again.
package run

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/job/launch"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/standalone"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/ui/cli"
)

// Exit codes of mete run besides those of the command, as in env(1).
const (
	codeFailed   = 125 // mete itself failed and started nothing
	codeRefused  = 126 // the command cannot be executed
	codeNotFound = 127 // there is no such command
)

// An Exit ends the program with a code. Err, if set, is still to be printed.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}
func (e *Exit) Unwrap() error { return e.Err }

// Exit implements cli.Exit.
func (e *Exit) Exit() (code int, show error) { return e.Code, e.Err }

// options are the flags as given.
type options struct {
	name    string
	project string
	labels  []string
	cpus    string
	memory  string
	reader  string
	output  string
	json    string
	quiet   bool
	waitAll bool
	self    bool

	powercap string

	server    string
	blank     bool // --server is set to ""
	tokenFile string
	wait      time.Duration
}

// config is the parsed options.
type config struct {
	name    string
	project string // "" is the one that the administrator gave the user
	labels  map[string]string
	limits  launch.Limits
	reader  string
	output  string
	json    string
	quiet   bool
	waitAll bool
	self    bool
	command []string

	powercap string // directory of the energy meters; "" is the machine's own

	server    string // receives the job's figures; "" is none
	tokenFile string
	wait      time.Duration
}

const long = `Run a command as a metered job and report its use of CPU time, memory, disk,
network, processes and energy, with the quality of each figure.

The command and all processes that it starts run in a control group of their own,
below the caller's. Input, output, signals, terminal and exit code are those of
the command, as without mete. If mete cannot create a group, it follows the
processes instead, and marks the figures as apportioned.

When the command ends, mete prints the report to standard error and keeps it in
the state directory ($METE_STATE, else /var/lib/mete for root, $XDG_STATE_HOME/mete
or ~/.local/state/mete for others), where mete report finds it. The report names
processes that the command leaves running; they continue in its group, and
--wait-all waits for them. Their later use is not in the report; an agent of this
machine still books it to the job. Data that is still waiting to be written to disk when
the job ends is not counted.

Energy is that of the job's own activity: its part, by CPU time and memory, of the
energy above idle that the machine's meters show, or of a model if the machine has
no meters. Next to it is the job's share, by CPU time, of the machine's idle
energy. Both are shown with their possible error and their source.

mete run registers the job with an agent of this machine, so that its ledger has
the job's name, and waits at the end of the job, for at most 10 s, until the agent
has the job's use on disk. If it has not, or if it is down, the report says "not in
the ledger by name" (in_ledger_by_name in JSON): the job's use is in the ledger, but
possibly as that of the group above it. A project is booked by an agent only, and
only the one that the administrator of the machine gave the user in
/etc/mete/projects; root may name any by --project. A job that asks for another does
not start. Without an agent, --server sends the job's figures to a server,
while it runs and at its end: this needs a token of mete token create --role job
once, best in a file that only its user can read. The command's environment is that
of mete run without METE_TOKEN and METE_UPSTREAM_TOKEN. Figures that cannot be sent
wait in the state directory, and the next job sends them.

If the job is in the ledger of a server, it can request its own use while it runs.
Its environment then has METE_SELF_URL, the address of the request; METE_SELF_TOKEN,
a token for this request only; and METE_SELF_CA, a file with the certificate that
verifies the server, if it uses TLS:
curl --cacert "$METE_SELF_CA" -H "Authorization: Bearer $METE_SELF_TOKEN" "$METE_SELF_URL"
mete usage --self does the same.

Sizes take K M G T (powers of 1000) and Ki Mi Gi Ti (powers of 1024).`

const example = `  mete run -- make -j8
  mete run --name nightly --label team=web --json usage.json -- ./build.sh
  mete run --cpus 1.5 --memory 2Gi -- python3 train.py
  mete run --project shop --name nightly -- ./build.sh
  mete run --quiet --json - -- true | jq .cpu_seconds
  mete run --server https://mete.example.org:9797 --token-file FILE -- make test`

const codes = `Exit codes: the command's own; 128 + n if signal n ended it or came before its
start; 127 if there is no such command; 126 if it cannot be executed; 125 if mete
failed and started nothing.`

// Command returns mete run. Its error is an *[Exit] whenever the exit code is not 0.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:                   "run [flags] -- COMMAND [ARGUMENT]...",
		Short:                 "Run a command as a metered job and report what it used",
		Long:                  long + "\n\n" + codes,
		Example:               example,
		SilenceUsage:          true,
		SilenceErrors:         true,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.blank = cmd.Flags().Changed("server") && o.server == ""
			c, err := o.config(args)
			if err != nil {
				return &Exit{codeFailed, err}
			}
			return run(c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return &Exit{codeFailed, fault.WithHint(err, "mete run --help lists the flags; those of the command go after --")}
	})
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.name, "name", "", "call the job `NAME` (default: the command's)")
	f.StringVar(&o.project, "project", "", "book the job to `PROJECT` (default: the one of /etc/mete/projects for this user; others only as root)")
	f.StringArrayVar(&o.labels, "label", nil, "label the job `KEY=VALUE`; may be repeated")
	f.StringVar(&o.cpus, "cpus", "", "limit the job to `N` CPUs' time, such as 1.5")
	f.StringVar(&o.memory, "memory", "", "limit the job's memory to `SIZE`, such as 512Mi")
	f.StringVar(&o.reader, "reader", "auto", "take figures from `READER`: bpf, files (control group files only), or auto (bpf where the kernel allows it)")
	f.StringVarP(&o.output, "output", "o", "text", "print the report to standard error as `FORM`: text, json or csv")
	f.StringVar(&o.json, "json", "", "also write the report as JSON to `FILE`; - is standard output")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print no report; only what is still running is named, in one line on standard error")
	f.BoolVar(&o.waitAll, "wait-all", false, "wait for everything that the command left running")
	f.BoolVar(&o.self, "self", true, "give the job what it needs to ask for its own use; --self=false gives it nothing")
	f.StringVar(&o.powercap, "powercap", "", "read the energy meters in `DIR`, laid out as /sys/class/powercap, in place of the machine's")
	f.StringVar(&o.server, "server", "", "send what the job used to the ledger of the server at `URL`; METE_SERVER alone does not")
	f.StringVar(&o.tokenFile, "token-file", "", "`FILE` with the token that enrolls with the server once (default: $METE_TOKEN)")
	f.DurationVar(&o.wait, "server-wait", standalone.Default().Wait, "wait for the server at most `DURATION`, at the end of the job and before the first one")
	cli.Choices(cmd, "reader", "auto", "bpf", "files")
	cli.Choices(cmd, "output", "text", "json", "csv")
	return cmd
}

// config checks the options.
func (o *options) config(args []string) (*config, error) {
	if len(args) == 0 {
		return nil, fault.WithHint(errors.New("no command given"), "mete run -- COMMAND [ARGUMENT]...")
	}
	c := &config{
		name: o.name, project: o.project, labels: map[string]string{}, reader: o.reader, output: o.output, json: o.json,
		quiet: o.quiet, waitAll: o.waitAll, self: o.self, command: args, powercap: o.powercap,
		server: o.server, tokenFile: o.tokenFile, wait: o.wait,
	}
	if c.name == "" {
		c.name = printable(filepath.Base(args[0]))
	}
	if c.name != printable(c.name) {
		return nil, fmt.Errorf("--name %q: not plain text", o.name)
	}
	if c.project != printable(c.project) {
		return nil, fmt.Errorf("--project %q: not plain text", o.project)
	}
	for _, l := range o.labels {
		k, v, ok := strings.Cut(l, "=")
		_, twice := c.labels[k]
		switch {
		case !ok || k == "":
			return nil, fault.WithHint(fmt.Errorf("--label %q: %w", l, fault.ErrInvalid), "write --label key=value")
		case l != printable(l):
			return nil, fmt.Errorf("--label %q: not plain text", l)
		case twice:
			return nil, fmt.Errorf("--label %q: given twice", k)
		}
		if err := batch.CheckJobLabel(k); err != nil {
			return nil, fmt.Errorf("--label %q: %w", l, err)
		}
		c.labels[k] = v
	}
	if len(c.labels) > batch.MaxLabels {
		return nil, fmt.Errorf("--label: %d labels are more than %d: %w", len(c.labels), batch.MaxLabels, fault.ErrInvalid)
	}
	if err := cli.OneOf("--reader", o.reader, "auto", "bpf", "files"); err != nil {
		return nil, err
	}
	if err := cli.OneOf("-o", o.output, "text", "json", "csv"); err != nil {
		return nil, err
	}
	switch {
	case o.server == "" && (o.tokenFile != "" || o.blank):
		return nil, fault.WithHint(fmt.Errorf("no server given: %w", fault.ErrInvalid), "mete run --server URL -- COMMAND sends what the job used to the server at URL")
	case o.wait <= 0:
		return nil, fmt.Errorf("--server-wait %v: %w", o.wait, fault.ErrInvalid)
	}
	var err error
	c.limits, err = o.limits()
	return c, err
}

func (o *options) limits() (launch.Limits, error) {
	var l launch.Limits
	var err error
	if o.cpus != "" {
		l.CPUs, err = parseCPUs(o.cpus)
		if err != nil {
			return l, err
		}
	}
	if o.memory != "" {
		l.Memory, err = unit.ParseBytes(o.memory)
		if err != nil || l.Memory < 1 {
			return l, fault.WithHint(fmt.Errorf("--memory %q: %w", o.memory, fault.ErrInvalid), "write bytes, or 512Mi, 2G, 1.5Gi")
		}
	}
	return l, nil
}

func parseCPUs(s string) (float64, error) {
	var v float64
	var rest string
	n, _ := fmt.Sscanf(s+" ", "%g%s", &v, &rest)
	// The kernel's minimum is 1 ms per period of 100 ms.
	if n != 1 || math.IsNaN(v) || v < 0.01 || v > 1e6 {
		return 0, fault.WithHint(fmt.Errorf("--cpus %q: %w", s, fault.ErrInvalid), "write a number of CPUs from 0.01, such as 1.5")
	}
	return v, nil
}

// printable replaces unprintable characters.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return '?'
		}
		return c
	}, s)
}

// newID returns an ID for a job that starts now.
func newID() string {
	var b [10]byte
	rand.Read(b[:]) // never fails
	return report.NewID(time.Now().UnixMilli(), b)
}

// failed wraps err in an Exit: with the shell's exit code if the command is at fault, else with
// mete's own.
func failed(err error) error {
	if e, ok := errors.AsType[*launch.StartError](err); ok {
		return &Exit{e.Code, err}
	}
	return &Exit{codeFailed, err}
}
