// Package up implements the command mete up: this machine's workloads as a web page and as JSON, on
// a local address. It runs an [AllInOne]: a server and an agent for this machine in one process,
// which use the network protocol without a network.
package up

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/identity/docker"
	"mete.dev/mete/internal/identity/libvirt"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/httpx"
	"mete.dev/mete/internal/x/sameuser"
	"mete.dev/mete/internal/x/settings"
	"mete.dev/mete/internal/x/statedir"
	"mete.dev/mete/internal/x/text"
)

// A Meter returns the state of the machine, tick by tick. One goroutine calls Next; Close is called
// after the last call has returned.
type Meter = interface {
	// Next waits for the next tick, or for the end of ctx. The caller may keep the result: it does
	// not change later. An error skips the tick, except that one which wraps fault.ErrUnsupported,
	// fault.ErrDenied or fault.ErrInvalid ends the command.
	Next(ctx context.Context) (*live.Machine, error)
	Close() error
}

// Open starts a meter. The handler, which may be nil, answers queries on the ledger, below /v1/ and
// /api/v1/ and at /metrics.
type Open = func(context.Context, Options) (Meter, http.Handler, error)

// Options control the measurement.
type Options struct {
	Tick   time.Duration
	Reader string // auto, bpf or files
	State  string // directory of all stored data
	// Powercap is the directory of the RAPL counters; "" is this machine's own.
	Powercap string
	// Containers are the sockets of the daemons that name containers.
	Containers []string
	// Domains is the directory of the running virtual machines of libvirt.
	Domains string
	// Connections says whether to count network traffic by peer and port: auto or off.
	Connections string
	// Demo simulates power meters in place of the machine's own, and stores windows in a temporary
	// directory.
	Demo bool
}

// defaultListen is the address of the page, and the default server of other commands.
const defaultListen = "127.0.0.1:9797"

// Limits of --interval: below the first the meter measures mostly itself, above the second it
// misses too many short-lived workloads.
const (
	minTick = 100 * time.Millisecond
	maxTick = time.Minute
)

// A keeper is a Meter with a ledger. Without one, no request may see the machine.
type keeper interface {
	// Serve sets the URL of the page, which jobs use to query their own use.
	Serve(url string)
	// Authorize returns an error unless the sender of a request may see the machine.
	Authorize(r *http.Request) error
	// PageLink returns a URL that opens the page in one browser.
	PageLink() (string, error)
	// Socket is the path of the unix socket that serves this user and root.
	Socket() string
}

type config struct {
	listen   string
	insecure bool
	interval interval
	reader   string
	// containers are the sockets of the daemons that name containers.
	containers []string
	// domains is the directory of the running virtual machines of libvirt.
	domains     string
	connections string // auto or off
	state       string
	powercap    string
	demo        bool

	given bool   // state is not the default
	host  string // of listen
}

// Command returns the command. It ends without an error when its context ends.
func Command(open Open) *cobra.Command {
	c := defaultConfig()
	set := c.settings()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Measure this machine and serve a page of it",
		Long: `Measure what every workload of this machine uses, keep it for years in a ledger
in the state directory, and serve it, on this machine alone:

  /                  the dashboard
  /api/v0/snapshot   this machine in its latest second, as JSON
  /api/v1/query      PromQL, as Prometheus answers it
  /v1/usage          what was used over time; mete usage asks here, as do
                     mete nodes and mete gaps
  /metrics           how the ledger is doing, for Prometheus
  /healthz           200 while the machine can be read, else 503 with the reason

Only the user that runs it and root may read, as the names of workloads say what
others do. Their commands need no token: they use a unix socket in the state
directory. A browser needs the link that is printed at the start, which works once;
mete token link makes another. A program, such as Prometheus, sends a token of
mete token create --role viewer.

There is no TLS, so only addresses of this machine itself are listened on. From
elsewhere, come through a tunnel: ssh -L 9797:127.0.0.1:9797 HOST`,
		Example: `  mete up
  curl -s --unix-socket /var/lib/mete/server/admin.sock http://mete/v1/summary`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.Load(os.Getenv); err != nil {
				return err
			}
			if err := c.validate(); err != nil {
				return err
			}
			c.given = c.state != ""
			if c.state == "" && !c.demo {
				dir, err := statedir.Default(os.Getenv, os.Geteuid())
				if err != nil {
					return err
				}
				c.state = dir
			}
			return run(cmd.Context(), &c, open, cmd.OutOrStdout())
		},
	}
	cli.Settings(cmd, set)
	return cmd
}

// Settings returns the table of the settings of the command.
func Settings() *settings.Set {
	c := defaultConfig()
	return c.settings()
}

func defaultConfig() config {
	return config{listen: defaultListen, interval: interval(time.Second), reader: "auto", containers: docker.Sockets(), domains: libvirt.Directory, connections: "off"}
}

// settings returns the table, whose values are those of c.
func (c *config) settings() *settings.Set {
	s := settings.New("up")
	s.Text(&c.listen, "listen", "ADDRESS", "address and port to serve on (port 0: any free one)").Check(settings.Address)
	s.Switch(&c.insecure, "insecure", "listen on other addresses too, and show everyone who reaches them the latest second of this machine, in the clear")
	s.Var(&c.interval, settings.Duration, "interval", "DURATION", `time between two readings: "500ms", "2s" or seconds`).WithShort("d")
	s.Text(&c.state, "state", "DIR", "directory of what is kept (default: $METE_STATE, else /var/lib/mete of root, else in the home directory)")
	s.Text(&c.powercap, "powercap", "DIR", "read RAPL's counters in DIR, in place of this machine's own")
	s.Switch(&c.demo, "demo-power", "simulate power meters from this machine's real load, to try energy without a meter: each figure is marked as modelled, and the ledger is deleted when the command ends").OnlyFlag()
	s.Text(&c.reader, "reader", "READER", "how to read the kernel: auto, bpf or files").OneOf("auto", "bpf", "files")
	s.List(&c.containers, "container-socket", "PATH", "unix socket of Docker or Podman, which names this machine's containers; may be repeated; none asks no daemon").Check(docker.CheckSocket)
	s.Text(&c.domains, "libvirt", "DIR", "directory in which libvirt keeps its running virtual machines, which names them; none reads none").Check(libvirt.CheckDirectory)
	s.Text(&c.connections, "connections", "MODE", "whether to count network traffic by peer and port too, of which the 20 largest of each workload are kept: auto where it is counted by class, or off").OneOf("auto", "off")
	return s
}

// An interval is the time between two readings.
type interval time.Duration

func (i *interval) String() string { return time.Duration(*i).String() }

func (i *interval) Set(text string) error {
	d, err := unit.ParseSeconds(text)
	if err != nil {
		return err
	}
	if d < minTick || d > maxTick {
		return fault.WithHint(fault.ErrInvalid, "from 100ms to 1m")
	}
	*i = interval(d)
	return nil
}

// validate checks settings that depend on each other.
func (c *config) validate() (err error) {
	if c.demo && c.state != "" {
		return fault.WithHint(fmt.Errorf("--demo-power with --state %s: %w", c.state, fault.ErrInvalid),
			"what is simulated is never kept beside what was measured: leave --state out")
	}
	if c.host, _, err = net.SplitHostPort(c.listen); err != nil {
		return fault.WithHint(fmt.Errorf("--listen %q: %w", c.listen, fault.ErrInvalid), "write an address and a port: 127.0.0.1:9797, [::1]:9797, localhost:9797")
	}
	if !c.insecure && !isLoopback(c.host) {
		return c.refuse()
	}
	return nil
}

// refuse returns the error for an address that others can reach.
func (c *config) refuse() error {
	return fault.WithHint(fmt.Errorf("--listen %s: others can reach this address, and there is no TLS: %w", c.listen, fault.ErrInvalid),
		"listen on 127.0.0.1:9797 and come through a tunnel (ssh -L 9797:127.0.0.1:9797 HOST), or add --insecure to show this machine to everyone who reaches it")
}

// isLoopback reports whether a host name or address means only this machine.
func isLoopback(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Unmap().IsLoopback()
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

func run(ctx context.Context, c *config, open Open, out io.Writer) (err error) {
	ln, err := c.bind(ctx)
	if err != nil {
		return err
	}
	// The server closes it too, without an error; an early return must.
	defer func() { _ = ln.Close() }()

	m, kept, err := open(ctx, Options{Tick: time.Duration(c.interval), Reader: c.reader, State: c.state, Powercap: c.powercap, Containers: c.containers, Domains: c.domains, Connections: c.connections, Demo: c.demo})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()

	shown := page{c: c, addr: ln.Addr()}
	authorize := func(*http.Request) error { return fmt.Errorf("no ledger: %w", fault.ErrDenied) }
	at := browserURL(ln.Addr(), c.host)
	if k, ok := m.(keeper); ok {
		authorize = k.Authorize
		// The ledger takes tokens without TLS from this machine only.
		if host, _, err := net.SplitHostPort(at); err == nil && isLoopback(host) {
			k.Serve("http://" + at)
			if shown.link, err = k.PageLink(); err != nil {
				return err
			}
		}
		withdraw, failed := sameuser.Publish(ln.Addr(), k.Socket())
		if shown.unpublished = failed; failed == nil {
			defer func() { err = errors.Join(err, withdraw()) }()
		}
	}
	if c.insecure {
		authorize = func(*http.Request) error { return nil }
	}
	f := newFeed()
	srv := newServer(f, kept, authorize, allowed(ln.Addr(), c.host))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.run(gctx, time.Duration(c.interval), m) })
	g.Go(func() error {
		if err := server.ServeUntil(gctx, srv, httpx.LimitConns(ln, maxConns)); err != nil {
			return fmt.Errorf("up: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		select {
		case <-f.ready:
			return shown.announce(out, f.latest.Load().machine)
		case <-gctx.Done():
			return nil
		}
	})
	return g.Wait()
}

// bind opens the address. It also refuses a name that resolves to an address that others can reach.
func (c *config) bind(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", c.listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: the port is in use: %w", c.listen, fault.ErrConflict),
			"perhaps mete up runs already; else choose another port with --listen "+net.JoinHostPort(c.host, "9798"))
	case errors.Is(err, syscall.EACCES):
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", c.listen, fault.ErrDenied), "ports below 1024 are for root: choose a higher one with --listen")
	case err != nil:
		return nil, fault.WithHint(fmt.Errorf("--listen %s: %w", c.listen, err), "choose an address of this machine with --listen")
	}
	if a, ok := ln.Addr().(*net.TCPAddr); !c.insecure && ok && !a.IP.IsLoopback() {
		return nil, errors.Join(c.refuse(), ln.Close())
	}
	return ln, nil
}

// A page is what announce prints beside the machine.
type page struct {
	c           *config
	addr        net.Addr
	link        string // opens it in one browser; "" is none
	unpublished error  // why commands of this user cannot find the server
}

// announce prints the URL of the page and what it shows.
func (p *page) announce(out io.Writer, m *live.Machine) error {
	c, addr := p.c, p.addr
	var b strings.Builder
	fmt.Fprintf(&b, "mete up: http://%s\n", browserURL(addr, c.host))
	if p.link != "" {
		again := "mete token link"
		if c.given {
			again += " --state " + text.Clean(c.state)
		}
		fmt.Fprintf(&b, "  open once, within an hour: %s\n", p.link)
		if !c.demo {
			fmt.Fprintf(&b, "  another browser: %s\n", again)
		}
	}
	fmt.Fprintf(&b, "  %s: %d CPUs, %d workloads, reader %s, every %s\n", text.Clean(m.Host), m.CPUs, len(m.Rows), text.Clean(m.Reader), time.Duration(c.interval))
	if m.Simulated != "" {
		fmt.Fprintf(&b, "  SIMULATED POWER %s: nobody measured it, nor what follows from it\n", text.Clean(m.Simulated))
	}
	ask := "mete usage"
	if at := "http://" + browserURL(addr, c.host); at != "http://"+defaultListen {
		ask += " --server " + at
	}
	if c.demo {
		fmt.Fprintf(&b, "  kept until the end: ask with %s\n", ask)
	} else {
		fmt.Fprintf(&b, "  kept in %s: ask with %s\n", text.Clean(c.state), ask)
	}
	if p.unpublished != nil {
		fmt.Fprintf(&b, "  note: mete usage and other commands need a token here: %s\n", text.Clean(p.unpublished.Error()))
	}
	for _, n := range m.Notes {
		fmt.Fprintf(&b, "  note: %s\n", text.Clean(n))
	}
	if c.insecure && !isLoopback(c.host) {
		b.WriteString("  insecure: everyone who reaches this address sees the latest second of this machine\n")
	}
	b.WriteString("Stop with Ctrl-C.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// browserURL returns the address for a browser: the requested name, and no wildcard. The name
// localhost may lead to another address of the loopback, where another user may listen.
func browserURL(addr net.Addr, host string) string {
	_, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	if a, ok := addr.(*net.TCPAddr); ok && a.IP.IsLoopback() {
		host = a.IP.String()
	}
	return net.JoinHostPort(host, port)
}
