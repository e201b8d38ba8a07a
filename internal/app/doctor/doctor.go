// Package doctor implements the command mete doctor: it checks what this machine can measure, and
// whether the programs, files and services of mete on it are in order.
//
// The agent's own code finds what the agent would do: its settings, its readers, its meters. Each check is a small function of what it is given, so that a test gives it a broken machine.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"

	"mete.dev/mete/internal/api/client"
	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/settings"
)

const long = `Check what this machine can measure, what is missing for more, and whether the
programs, files and services of mete are in order. Each check has a state:

  ok       it works
  limited  it works, and some figures are worse or absent
  missing  it does not exist: only the figures that it would give are absent
  failed   it is broken, or a program of mete refuses it

and, if it is not ok, what follows for figures, and what to do. The groups are

  rights        user, capabilities, namespaces
  kernel        version, BTF, the BPF programs that load, control groups, pressure
  energy        meters; without one, the curve that stands in, and its error
  virtual       the host of this virtual machine, and virtual machines of this one
  figures       quality of each figure of the workloads, in a reading of this moment
  programs      those beside this one, their versions, and who can replace them
  settings      the file, as each program checks it
  state         directories: owner, mode, space, lock, ledger, and token files
  clock         synchronization
  certificates  of the server, and of an agent that is enrolled
  services      server, agent, daemons of containers and units of systemd on this machine
  server        the server that --server or METE_SERVER names

The code of the agent finds what the agent would do, with the rights of the user
that runs mete doctor: run it as the user that is to run the agent, or as root.
For half a second it loads the BPF programs, reads the meters and asks the host for
a share of energy, as the agent does. It changes nothing, prints no secrets, and
takes less than three seconds unless --timeout allows more. Of a ledger it reads the
header only: mete check reads all of it.

The exit code is 0 if nothing failed, whatever is limited or missing, and 1 if
something failed.`

// A config is what the flags say.
type config struct {
	target client.Target
	state  string
	file   string // of settings; "" as the programs find it
	form   string
	ascii  bool
	// timeout is how long to wait for meters and services.
	timeout time.Duration
}

// Command returns the command. programs return the settings of mete server and mete up.
func Command(server, up func() *settings.Set) *cobra.Command {
	var c config
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine can measure, and what is missing",
		Long:  long,
		Example: `  mete doctor
  sudo mete doctor
  mete doctor --server https://mete.example.org:9797
  mete doctor -o json | jq '.checks[] | select(.state != "ok")'`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("-o", c.form, "text", "json"); err != nil {
				return err
			}
			if c.timeout <= 0 {
				return fault.WithHint(fmt.Errorf("--timeout %v: %w", c.timeout, fault.ErrInvalid), "write it as 30s")
			}
			d, err := newDoctor(c, server(), up())
			if err != nil {
				return err
			}
			defer func() { _ = d.host.Close() }() // it was only read
			d.version = cmd.Root().Version
			r := d.examine(cmd.Context())
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if err := write(cmd.OutOrStdout(), &r, c.form, c.ascii); err != nil {
				return err
			}
			if r.Counts.Failed > 0 {
				return errFailed
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.target.URL, "server", "", "check the server at `URL` too (default: $METE_SERVER)")
	c.target.TokenFlag(f)
	cli.StateFlag(cmd, &c.state)
	f.StringVar(&c.file, "config", "", "check `FILE`, in place of $METE_CONFIG or "+settings.DefaultFile)
	cli.OutputFlag(cmd, &c.form, "text", "json")
	f.BoolVar(&c.ascii, "ascii", false, "print ASCII characters only")
	f.DurationVar(&c.timeout, "timeout", 2500*time.Millisecond, "wait `DURATION` for meters and services that are slow to answer")
	return cmd
}

// failedError is the error of a report in which a check failed.
type failedError struct{}

var errFailed = failedError{}

func (failedError) Error() string { return "a check failed" }

// Exit implements cli.Exit.
func (failedError) Exit() (code int, show error) { return cli.Failed, nil }

// write prints a report.
func write(w io.Writer, r *Report, form string, ascii bool) error {
	if form == "json" {
		b, err := r.json()
		if err != nil {
			return err
		}
		_, err = w.Write(b)
		return err
	}
	width := 0
	if f, ok := w.(*os.File); ok && term.IsTerminal(f.Fd()) {
		if n, _, err := term.GetSize(f.Fd()); err == nil && n >= minWidth {
			width = n
		}
	}
	_, err := io.WriteString(w, r.text(width, ascii))
	return err
}

// minWidth is the least width of a terminal in which lines are wrapped.
const minWidth = 60

// A doctor examines a machine.
type doctor struct {
	config
	host     *hostfs.FS
	uid      int
	getenv   func(string) string
	version  string
	programs [3]program // in the order of settings.Sections
	agent    agent.Config
}

// A program is a program with a section in the file of settings.
type program struct {
	name string // as "mete server"
	set  *settings.Set
	err  error // of loading its settings
}

// newDoctor loads the settings, whose errors become checks.
func newDoctor(c config, server, up *settings.Set) (*doctor, error) {
	h, err := hostfs.Open("/")
	if err != nil {
		return nil, err
	}
	d := &doctor{config: c, host: h, uid: os.Geteuid(), getenv: os.Getenv, agent: agent.Default()}
	d.programs = [...]program{{name: "mete server", set: server}, {name: "mete up", set: up}, {name: "mete-agent", set: d.agent.Settings()}}
	for i := range d.programs {
		d.programs[i].load(c.file, d.getenv)
	}
	return d, nil
}

// load loads the settings as the program does.
func (p *program) load(file string, getenv func(string) string) {
	if file != "" {
		for _, s := range p.set.All() {
			if s.Name == "config" {
				p.err = s.SetFlag(file)
			}
		}
	}
	if p.err == nil {
		p.err = p.set.Load(getenv)
	}
}

// value returns the value of a setting, by its key; "" if there is none.
func (p *program) value(key string) string {
	for _, s := range p.set.All() {
		if t := s.Texts(); s.Key() == key && len(t) > 0 {
			return t[0]
		}
	}
	return ""
}

// groups are the groups in the order of the report.
var groups = []string{"rights", "kernel", "energy", "virtual", "figures", "programs", "settings", "state", "clock", "certificates", "services", "server"}

// examine makes all checks, those that wait at the same time.
func (d *doctor) examine(ctx context.Context) Report {
	ctx, stop := context.WithTimeout(ctx, d.timeout)
	defer stop()
	states := d.findStates()
	var mu sync.Mutex
	found := map[string][]Check{}
	put := func(group string, checks []Check) {
		mu.Lock()
		defer mu.Unlock()
		found[group] = append(found[group], checks...)
	}
	var all sync.WaitGroup
	all.Go(func() {
		m := d.measure(ctx)
		put("kernel", d.kernel(&m))
		put("energy", energyChecks(&m, d.uid))
		put("virtual", virtualChecks(&m))
		put("figures", figureChecks(&m))
	})
	all.Go(func() { put("services", d.services(ctx, states)) })
	all.Go(func() { put("server", d.server(ctx)) })
	put("rights", d.rights())
	put("programs", d.installed())
	put("settings", d.settings())
	put("state", append(d.state(ctx, states), d.tokens(states)...))
	put("clock", clockChecks())
	put("certificates", certificates(states, time.Now()))
	all.Wait()

	r := Report{Format: 1, Time: time.Now().UTC().Truncate(time.Second), Version: d.version, UID: d.uid, Checks: []Check{}}
	r.Host, _ = d.host.Hostname() // a report without a name is one too
	for _, g := range groups {
		r.add(g, found[g])
	}
	return r
}

// errTimeout is why a machine has no figures.
var errTimeout = errors.New("this machine could not be read in time")

// quiet is a log that is not kept: the checks say what it would.
var quiet = slog.New(slog.DiscardHandler)
