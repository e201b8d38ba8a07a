// Package server implements the command mete server: a ledger for many machines.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/ui/cli"
	"mete.dev/mete/internal/x/sameuser"
	"mete.dev/mete/internal/x/statedir"
	"mete.dev/mete/internal/x/text"
)

type config struct {
	server.Config
	listen   string
	up       upstreamSettings
	meters   string
	alerts   alertSettings
	remote   remoteWriteSettings
	kube     kubeSettings
	slurm    slurmSettings
	insecure bool
	debug    bool
}

// Command returns the command. It ends without an error when its context ends.
// Each of configure may change the configuration that the flags give, before the server opens.
func Command(configure ...func(*server.Config)) *cobra.Command {
	c := config{Config: server.Default(), listen: defaultListen}
	set := c.settings()
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server that keeps the ledger of many machines",
		Long: `Receive the measurements of the agents of many machines, book them, and answer
queries about them.

At its first start the server makes a certificate authority in its state
directory. A token carries that authority's fingerprint, so that an agent knows
its server, and gives an agent a certificate of its own:

  mete token create --role agent --cluster lab --uses 20 --expires 24h
  mete-agent --server https://HOST:9797 --token-file FILE

All connections are TLS 1.3. The ledger is SQLite in the state directory, or
PostgreSQL.

A server can send its rows, by minutes or by hours, to another server above it,
which can send them to a third. Each keeps its own copy. The server above creates
the token:

  mete token create --role upstream --cluster lab
  mete server --upstream https://CORE:9797 --upstream-token @FILE

Power strips, management controllers and smart plugs that feed machines are read
by the server where a file names them:

  meters:
    - name: plug-1
      type: http
      url: http://10.0.0.7/rpc/Switch.GetStatus?id=0
      path: aenergy.total
      unit: Wh
      nodes: [web-1]

With --kube-cluster the server watches the API server of a Kubernetes cluster, and
gives workloads of its nodes the names of their pods; see docs/guide/kubernetes.md.

With --slurm-cluster the server asks the controller of a Slurm cluster, and gives
the jobs and steps on its nodes their names; see docs/guide/slurm.md.

The server evaluates rules that are shipped with it, and those of --rules, in
Prometheus's format, and sends alerts to an Alertmanager or a webhook. On SIGHUP
it reads the files of --rules again; see docs/guide/alerts.md.

The server also sends the samples of its metrics to the receivers of Prometheus's
remote write that --remote-write names.`,
		Example: `  mete server
  mete server --database postgres://mete@db/mete --name mete.example.org
  mete server --listen 10.0.0.1:9797 --state /srv/mete
  mete server --upstream https://core:9797 --upstream-resolution 1h --upstream-pseudonyms
  mete server --kube-cluster lab --kubeconfig /etc/mete/lab.kubeconfig --kube-label team
  mete server --alertmanager http://alertmanager:9093 --rules /etc/mete/rules --power-cap lab=5000`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := set.Load(os.Getenv); err != nil {
				return err
			}
			if c.State == "" {
				dir, err := statedir.Default(os.Getenv, os.Geteuid())
				if err != nil {
					return err
				}
				c.State = filepath.Join(dir, "server")
			}
			var err error
			if c.Upstreams, err = c.up.configs(); err != nil {
				return err
			}
			if c.Meters, err = readMeters(c.meters); err != nil {
				return err
			}
			c.alerts.apply(&c.Config)
			if c.Remote, err = c.remote.receivers(); err != nil {
				return err
			}
			if c.Kube, err = c.kube.config(); err != nil {
				return err
			}
			if c.Slurm, err = c.slurm.config(); err != nil {
				return err
			}
			for _, change := range configure {
				change(&c.Config)
			}
			return run(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cli.Settings(cmd, set)
	return cmd
}

func run(ctx context.Context, c config, out, logTo io.Writer) (err error) {
	level := slog.LevelInfo
	if c.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(logTo, &slog.HandlerOptions{Level: level}))
	ln, err := server.Listen(ctx, c.listen)
	if err != nil {
		return err
	}
	defer func() { _ = ln.Close() }() // serving closes it too
	c.Local = c.insecure
	if host, _, err := net.SplitHostPort(c.listen); err == nil && host != "" {
		c.Names = append(c.Names, host)
	}
	if c.Alerts.PageURL == "" {
		c.Alerts.PageURL = pageURL(ln.Addr(), c.Names, c.insecure)
	}
	s, err := server.Open(ctx, c.Config, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := server.LimitMemory(); err != nil {
		log.Warn("cannot read the memory limit; set GOMEMLIMIT in a control group with one", "err", err)
	}
	admin, err := server.ListenAdmin(c.State)
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()

	scheme, tls := "https", s.Authority.ServerTLS()
	if c.insecure {
		scheme, tls = "http", nil
	}
	next := c.nextSteps()
	if c.insecure {
		s.SetURL("http://" + localAddress(ln.Addr()))
		page, err := s.PageLink()
		if err != nil {
			return err
		}
		next = "  open once in a browser, within an hour: " + page + "\n"
	}
	// With TLS too: commands of this user need no token, as in the server's container.
	switch withdraw, err := sameuser.Publish(ln.Addr(), admin.Addr().String()); {
	case err == nil:
		defer func() { _ = withdraw() }() // a link that is left leads to nothing
	case c.insecure:
		return fmt.Errorf("agents of this machine could not find the server: %w", err)
	default:
		log.Info("commands of this user need the server's URL and a token", "err", err)
	}
	hup, stop := notifyHangup()
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.Run(gctx) })
	g.Go(func() error { reload(gctx, hup, s, log); return nil })
	g.Go(func() error { return server.Serve(gctx, ln, s.Handler(), tls) })
	g.Go(func() error { return server.Serve(gctx, admin, s.AdminHandler(s.Handler()), nil) })
	if _, err := fmt.Fprintf(out, "mete server: %s://%s\n  ledger: %s\n%s", scheme, ln.Addr(), c.describe(), next); err != nil {
		return errors.Join(err, g.Wait())
	}
	if c.insecure {
		log.Warn("plain HTTP: programs of this user and of root read and send without a token", "addr", ln.Addr(), "socket", admin.Addr())
	}
	return g.Wait()
}

// nextSteps returns how people sign in at a server with TLS, trust its certificate and let
// machines enroll.
func (c *config) nextSteps() string {
	state := text.Clean(c.State)
	return fmt.Sprintf(`  dashboard: %s
  sign in with the token of: mete token create --role viewer --state %s
  let agents enroll with the token of: mete token create --role agent --uses 20 --expires 24h --state %s
  certificate that browsers have to trust: openssl x509 -in %s -out mete-ca.pem
`, text.Clean(c.Alerts.PageURL), state, state, filepath.Join(state, "authority", "ca.pem"))
}

// localAddress returns the address at which browsers of this machine reach a listener.
func localAddress(at net.Addr) string {
	if a, ok := at.(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		return net.JoinHostPort("127.0.0.1", strconv.Itoa(a.Port))
	}
	return at.String()
}

// describe returns the location of the ledger, without a password.
func (c *config) describe() string {
	if c.Database == "" {
		return filepath.Join(c.State, "ledger.db")
	}
	if u, err := url.Parse(c.Database); err == nil {
		return u.Redacted()
	}
	return "the database that --database names"
}
