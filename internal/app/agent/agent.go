// Package agent implements mete-agent: it measures its machine, tick by tick, closes a window every
// few seconds, and sends it to a server.
package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/agent"
	"mete.dev/mete/internal/attribute/energy"
	"mete.dev/mete/internal/collect/gpu"
	"mete.dev/mete/internal/collect/net"
	"mete.dev/mete/internal/collect/sampler"
	"mete.dev/mete/internal/collect/sources"
	"mete.dev/mete/internal/collect/storage"
	"mete.dev/mete/internal/guest/publish"
	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/x/secretenv"
	"mete.dev/mete/internal/x/settings"

	meters "mete.dev/mete/internal/collect/energy"
)

// Long is the program's help above its flags.
const Long = `Measure what every workload of this machine uses, until SIGTERM or SIGINT, and
send it to a server:

  mete-agent --server https://mete.example.org:9797 --token-file FILE

The token in FILE, of ` + "`mete token create --role agent`" + ` on the server, is needed once: it gives
this machine an id and a certificate, which it keeps in its state directory and
renews by itself. From then on the agent measures whether the server can be reached
or not: what cannot be sent waits in the state directory too.

Each flag is also a key in the section agent of /etc/mete/mete.yaml and a variable
of the environment: --vm-shares is vm_shares and METE_AGENT_VM_SHARES, except that
--server is METE_SERVER, --socket METE_SOCKET, for mete run too, and --host-vsock
METE_HOST_VSOCK. Flags come before the environment, and that before the file.
METE_STATE is the directory of which --state is a part, METE_TOKEN the token; see
docs/config.md.

Exit codes: 0 after a signal; 2 where the command line, the environment or the file
is wrong; else 1.`

// A Config configures the agent.
type Config struct {
	Machine sources.Config
	Agent   agent.Config // storing and sending
	// Server is the URL of the server; "" is none: windows are not stored.
	Server string
	// Token enrolls this machine. TokenFile is a file with it and has priority.
	Token, TokenFile string
	Name             string // of this machine; "" is its host name
	State            string // directory of the identity and the spool
	Curve            string // written by mete power calibrate; "" is none
	Socket           string // unix socket for jobs of mete run; "" is none
	Status           string // address of /metrics and /healthz; "" is none
	StatusWorkloads  bool   // serve workload metrics to everyone who can reach Status
	Compat           string // additional metric names: "" or kepler
	Version          string // of the program
	ShowVersion      bool   // print the version and exit
	// Print writes each closed window to the output: a JSON line for the balance,
	// then one for each row.
	Print bool
}

// Default measures with the best available reader, once a second.
func Default() Config {
	c := Config{
		Machine: sources.Config{Config: sampler.Default(), Reader: sources.Auto, Storage: storage.Default(), Energy: meters.Config{Shares: meters.DefaultShares, VSock: meters.DefaultVSock(os.Getenv)}},
		Agent:   agent.Default(),
		Token:   os.Getenv(secretenv.Token),
		State:   stateDir(), Socket: socketPath(), Status: "127.0.0.1:9798",
	}
	c.Agent.Handover = publish.Default()
	return c
}

// Settings returns the table of the settings of the agent; the values in c are the defaults.
func (c *Config) Settings() *settings.Set {
	s := settings.New("agent")
	s.Duration(&c.Machine.Tick, sampler.MinTick, sampler.MaxTick, "tick", "time between two readings")
	s.Duration(&c.Machine.Window, sampler.MinTick, 24*time.Hour, "window", "time that a window spans")
	s.Text(&c.Machine.Reader, "reader", "READER", "how to read the kernel: "+strings.Join(sources.Readers, ", ")).OneOf(sources.Readers...)
	c.Machine.Scope, c.Machine.NetworkClasses, c.Machine.Connections = sources.ScopeAuto, sources.ClassesAuto, sources.ConnectionsOff
	s.Text(&c.Machine.Scope, "scope", "SCOPE", "what to measure in a container: auto is the machine where its control groups can be opened, own is the container; use outside of the container then counts for system").OneOf(sources.Scopes...)
	s.Text(&c.Server, "server", "URL", "URL of the server to send to, as https://mete.example.org:9797; without one nothing is kept or sent").WithEnv("METE_SERVER").SecretURL("the token belongs into token_file")
	s.Text(&c.TokenFile, "token-file", "FILE", "file with the token that enrolls this machine (default: $METE_TOKEN); it may be gone once that is done")
	s.Text(&c.Name, "name", "NAME", "name under which this machine enrolls, as where a container has another host name than its node (default: the host name); it stays until the machine enrolls again").Check(checkName)
	s.Text(&c.State, "state", "DIR", "directory for this machine's identity and what is not sent yet")
	s.Size(&c.Agent.Spool.MaxBytes, 1<<20, 1<<60, "spool-cap", "most bytes that the spool takes on disk, as 512MiB")
	s.Text(&c.Machine.Energy.Powercap, "powercap", "DIR", "directory to read RAPL's counters in, in place of this machine's /sys/class/powercap and hwmon")
	s.Text(&c.Machine.Energy.IPMI, "ipmi", "DEVICE", "device of the management controller to ask for the machine's power, as /dev/ipmi0; '' leaves it alone")
	c.Machine.Energy.NVML = gpu.Auto
	s.Text(&c.Machine.Energy.NVML, "nvml", "MODE", "how to read NVIDIA's accelerators, by mete-nvml, a program beside this one: auto, on (also a device that the kernel may switch off when it is idle; reading keeps it on), off, or the path of that program")
	s.Text(&c.Curve, "power-curve", "FILE", "file, written by mete power calibrate, with the power that this machine draws by its load, for the time in which no meter shows it")
	s.ListFunc("idle-power", "DOMAIN=WATTS", "power that a domain (package, dram, gpu, rest) draws when the machine does nothing, several with commas; rest is the whole machine where nothing finer is metered; what is not given is learned", c.parseIdlePower)
	s.Text(&c.Machine.NetworkClasses, "network-classes", "MODE", "whether to count network traffic by class: auto where the bpf reader can, or off").OneOf(sources.ClassesAuto, sources.ClassesOff)
	s.ListFunc("network-prefix", "CLASS=PREFIX", "class of the traffic with addresses in PREFIX, as internal=10.0.0.0/8; several with commas, and may be repeated; the longest prefix counts. Classes are node, box, internal, zone, peering, internet and unclassified. Without a rule this machine's addresses are node, those that are not for private or special use internet, and all others unclassified", c.parseNetworkRules)
	s.Text(&c.Machine.Connections, "connections", "MODE", "whether to count network traffic by peer and port too, of which the 20 largest of each workload are kept: auto where it is counted by class, or off").OneOf(sources.ConnectionsAuto, sources.ConnectionsOff)
	s.Text(&c.Machine.Storage.Mode, "storage", "MODE", "whether to measure the disk space of containers, pods and persistent volumes: auto where it is possible, or off").OneOf(storage.Auto, storage.Off)
	s.Number(&c.Machine.Storage.Rate, storage.MinRate, storage.MaxRate, "storage-rate", "N", "how many files to look at in a second, on average, to measure disk space; each takes some microseconds of CPU time")
	s.Text(&c.Machine.Storage.Kubelet, "kubelet-dir", "DIR", "directory of the kubelet, with the emptyDir volumes of pods: its --root-dir").Check(checkDir)
	c.guestRelaySettings(s)
	s.Text(&c.Socket, "socket", "PATH", "unix socket at which mete run registers jobs; '' is none").WithEnv("METE_SOCKET")
	s.List(&c.Agent.Containers, "container-socket", "PATH", "unix socket of Docker or Podman, which names this machine's containers; may be repeated; none asks no daemon").Check(docker.CheckSocket)
	s.Text(&c.Agent.Domains, "libvirt", "DIR", "directory in which libvirt keeps its running virtual machines, which names them; none reads none").Check(libvirt.CheckDirectory)
	s.Text(&c.Status, "status", "ADDRESS", "address of this agent's own /metrics and /healthz; '' is none").Check(func(text string) error {
		if text == "" {
			return nil
		}
		return settings.Address(text)
	})
	s.Switch(&c.StatusWorkloads, "status-workloads", "show at /metrics what each workload used, and its name, to everyone who reaches the status address: on the loopback every user of this machine")
	s.Text(&c.Compat, "compat", "PROGRAM", "add to /metrics the names of another program: kepler")
	s.Switch(&c.Print, "print", "write each window to standard output as JSON lines: its balance, then each workload's row; nothing is kept or sent then").OnlyFlag()
	s.Switch(&c.ShowVersion, "version", "write the program's version, and end").OnlyFlag()
	return s
}

// validName is what a machine may be called: longer than the host name of any Linux (hostname(7)).
var validName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)

func checkName(name string) error {
	if name != "" && !validName.MatchString(name) {
		return fault.WithHint(fmt.Errorf("%.60q is not a name of a machine: %w", name, fault.ErrInvalid), "use 1 to 253 letters, digits, and - _ . between them")
	}
	return nil
}

func checkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%.60q is not an absolute path: %w", dir, fault.ErrInvalid)
	}
	return nil
}

// Flags adds a flag for each setting to f, and returns the settings.
func (c *Config) Flags(f *flag.FlagSet) *settings.Set {
	s := c.Settings()
	for _, one := range s.All() {
		if one.Kind == settings.Switch {
			f.BoolFunc(one.Name, one.Help, one.SetFlag)
			continue
		}
		f.Func(one.Name, one.Help, one.SetFlag)
	}
	return s
}

// parseIdlePower parses the setting of that name.
func (c *Config) parseIdlePower(texts []string) error {
	var static [power.DomainLimit]int64
	for _, text := range texts {
		for part := range strings.SplitSeq(text, ",") {
			name, watts, ok := strings.Cut(part, "=")
			w, err := strconv.ParseFloat(watts, 64)
			if !ok || err != nil || !(w > 0 && w <= maxIdlePower) {
				return fmt.Errorf("%q is not DOMAIN=WATTS, above 0 and at most %d W", part, maxIdlePower)
			}
			d := power.Package
			for d < power.DomainLimit && d.String() != name {
				d++
			}
			if d == power.DomainLimit {
				return fmt.Errorf("%q is not one of package, dram, gpu and rest", name)
			}
			static[d] = int64(math.Round(w * 1e6))
		}
	}
	c.Machine.Static = static
	return nil
}

// parseNetworkRules parses the setting network-prefix.
func (c *Config) parseNetworkRules(texts []string) error {
	rules := net.Rules{}
	for _, text := range texts {
		if err := rules.Add(text); err != nil {
			return err
		}
	}
	c.Machine.NetworkRules = rules
	return nil
}

// maxIdlePower in W is more than any machine draws.
const maxIdlePower = 50_000

// readCurve reads the file of a power curve.
func (c *Config) readCurve() error {
	if c.Curve == "" {
		return nil
	}
	b, err := os.ReadFile(c.Curve)
	if err != nil {
		return fault.WithHint(fmt.Errorf("--power-curve: %w: %w", err, fault.ErrInvalid), "mete power calibrate -o FILE writes one, on a machine that has a meter")
	}
	fitted, err := energy.DecodeCalibration(b)
	if err != nil {
		return fmt.Errorf("--power-curve %s: %w", c.Curve, err)
	}
	c.Machine.Curve = fitted.Curve
	return nil
}

// Prepare reads the files that the settings name, and checks the settings.
func (c *Config) Prepare() error {
	if err := c.readCurve(); err != nil {
		return err
	}
	return errors.Join(c.Machine.Validate(), c.Agent.Handover.Validate())
}

// Run measures this machine until ctx ends.
func Run(ctx context.Context, cfg Config, out io.Writer, log *slog.Logger) (err error) {
	if err := cfg.Prepare(); err != nil {
		return err
	}
	if err := cfg.validateMetrics(log); err != nil {
		return err
	}
	if cfg.Server != "" && !cfg.Print {
		return runWithServer(ctx, cfg, log)
	}
	if !cfg.Print {
		return runLocal(ctx, cfg, log)
	}
	m, err := sources.Open(cfg.Machine, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	log.Info("measuring", "reader", m.Reader, "scope", string(m.Scope()), "tick", cfg.Machine.Tick, "window", cfg.Machine.Window)
	w := bufio.NewWriter(out)
	var failed error
	guestRelay, err := agent.NewGuestRelay(cfg.Agent.Handover, m, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return guestRelay.Run(gctx) })
	g.Go(func() error {
		return m.Run(gctx, guestRelay.Tick, func(win *usage.Window) {
			if b := win.Balance; b.Violations > 0 || b.Lost > 0 {
				log.Warn("window", "violations", b.Violations, "lost", b.Lost)
			}
			if failed = print(w, win); failed != nil {
				stop()
			}
		})
	})
	return errors.Join(g.Wait(), failed)
}

// span is the time of a window, in each of its lines.
type span struct {
	Start int64 `json:"start_boottime_ns"`
	End   int64 `json:"end_boottime_ns"`
}

// window is the first line of a window.
type window struct {
	span
	Boot    string        `json:"boot"`
	Offset  int64         `json:"offset_ns,string"` // wall time minus boottime
	Rows    int           `json:"rows"`             // number of rows that follow
	Balance usage.Balance `json:"balance"`
}

// row is a printed row of a window.
type row struct {
	span
	ID      workload.ID       `json:"id"`
	Parent  workload.ID       `json:"parent,omitempty"`
	Kind    workload.Kind     `json:"kind"`
	Name    string            `json:"name"`
	Path    string            `json:"path,omitempty"`
	Ended   bool              `json:"ended,omitempty"`
	Used    map[string]string `json:"used"` // base units, by resource
	Quality map[string]string `json:"quality"`
}

func print(w *bufio.Writer, win *usage.Window) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	when := span{win.Start, win.End}
	if err := enc.Encode(window{when, win.Boot, win.Offset, len(win.Rows), win.Balance}); err != nil {
		return err
	}
	for i := range win.Rows {
		r := &win.Rows[i]
		out := row{span: when, ID: r.Workload.ID, Parent: r.Workload.Parent, Kind: r.Workload.Kind,
			Name: r.Workload.Name, Path: r.Workload.Path, Ended: r.Ended, Used: map[string]string{}, Quality: map[string]string{}}
		r.Usage.Present.Each(func(res usage.Resource) {
			out.Used[res.String()] = res.Detail().Unit.Decimal(r.Usage.Amount[res])
			out.Quality[res.String()] = r.Usage.Quality.Get(res).String()
		})
		if err := enc.Encode(out); err != nil {
			return err
		}
	}
	return w.Flush()
}
