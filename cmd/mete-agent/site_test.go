package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"mete.dev/mete/internal/app/check"
	"mete.dev/mete/internal/app/query"
	apprun "mete.dev/mete/internal/app/run"
	"mete.dev/mete/internal/app/server"
	"mete.dev/mete/internal/app/token"
	"mete.dev/mete/internal/app/usage"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/syncbuf"
	"mete.dev/mete/internal/ui/cli"
)

// mete runs the commands of mete that these tests need.
func mete(args []string) int {
	ctx := context.Background()
	if args[0] != "run" {
		var stop func()
		ctx, stop = signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
		defer stop()
	}
	root := &cobra.Command{Use: "mete", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(apprun.Command(), server.Command(), token.Command(), usage.Usage(), usage.Runs(), usage.Gaps(), usage.Nodes(), query.Command(), check.Command())
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if e, ok := errors.AsType[*apprun.Exit](err); ok {
		return e.Code
	}
	if err != nil {
		cli.Explain(os.Stderr, "mete", err)
	}
	return cli.Code(err)
}

// A program is a running program.
type program struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	log   syncbuf.Buffer // both outputs
	ended chan struct{}
	err   error
}

// loopback is the address of servers.
var loopback = testkit.Loopback()

// A site is a state directory of a server and an agent.
type site struct {
	t            *testing.T
	dir          string
	env          []string
	url, viewer  string
	token        string   // of agents
	server, node *program // running programs
}

func newSite(t *testing.T) *site {
	t.Helper()
	// Socket paths must be short.
	dir, err := os.MkdirTemp("", "mete-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	s := &site{t: t, dir: dir}
	s.env = append(os.Environ(), "METE_STATE="+dir, "METE_SOCKET="+filepath.Join(dir, "s"), "METE_SERVER=", "METE_TOKEN=")
	return s
}

func (s *site) command(program string, args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Env = append(s.env, "METE_TEST_MAIN="+program)
	return c
}

// start starts a program and kills it at the end of the test.
func (s *site) start(which string, c *exec.Cmd) *program {
	s.t.Helper()
	return s.startTo(nil, which, c)
}

// startTo is start with standard output to out, if not nil.
func (s *site) startTo(out io.Writer, which string, c *exec.Cmd) *program {
	s.t.Helper()
	p := &program{t: s.t, name: which, cmd: c, ended: make(chan struct{})}
	c.Stdout, c.Stderr = &p.log, &p.log
	if out != nil {
		c.Stdout = out
	}
	if err := c.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		p.err = c.Wait()
		close(p.ended)
	}()
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("%s said:\n%s", which, &p.log)
		}
	})
	return p
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// stop stops a program with SIGTERM.
func (p *program) stop() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	p.wait()
	if p.err != nil {
		p.t.Errorf("%s after SIGTERM: %v", p.name, p.err)
	}
}

// wait waits until the program has ended.
func (p *program) wait() {
	<-p.ended
}

// waitOutput waits until the program's output matches pattern.
func (p *program) waitOutput(pattern string) []string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var m []string
	p.await(pattern, func() bool {
		m = re.FindStringSubmatch(p.log.String())
		return m != nil
	})
	return m
}

// await waits for a condition and fails if the program ends.
func (p *program) await(what string, ok func() bool) {
	p.t.Helper()
	testkit.Eventually(p.t, p.name+": "+what, func() bool {
		select {
		case <-p.ended: // what it said before counts
			if !ok() {
				p.t.Fatalf("%s ended before %q: %v\n%s", p.name, what, p.err, &p.log)
			}
			return true
		default:
			return ok()
		}
	})
}

// run runs a command of mete and returns its standard output.
func (s *site) run(args ...string) string {
	s.t.Helper()
	var out, err bytes.Buffer
	c := s.command("mete", args...)
	c.Stdout, c.Stderr = &out, &err
	if e := c.Run(); e != nil {
		s.t.Fatalf("mete %s: %v\n%s", strings.Join(args, " "), e, &err)
	}
	return strings.TrimSpace(out.String())
}

// serve starts the server, at its previous address.
func (s *site) serve(args ...string) {
	s.t.Helper()
	addr := loopback + ":0"
	if s.url != "" {
		addr = strings.TrimPrefix(s.url, "https://")
	}
	s.server = s.start("server", s.command("mete", append([]string{"server", "--listen", addr}, args...)...))
	s.url = s.server.waitOutput(`mete server: (https://\S+)`)[1]
	if s.token == "" {
		s.token = s.run("token", "create", "--role", "agent", "--uses", "9")
		s.viewer = s.run("token", "create", "--role", "viewer")
	}
}

// agent returns a command of an agent with short ticks.
func (s *site) agent(args ...string) *exec.Cmd {
	return s.command("1", append([]string{"-server", s.url, "-tick", "50ms", "-window", "250ms", "-status", ""}, args...)...)
}

// measure starts the agent.
func (s *site) measure(args ...string) {
	s.t.Helper()
	c := s.agent(args...)
	c.Env = append(c.Env, "METE_TOKEN="+s.token)
	s.node = s.start("agent", c)
	s.node.waitOutput("msg=measuring")
}

// job runs a job with CPU load and returns its report.
func (s *site) job(name, script string) *report.Report {
	s.t.Helper()
	return s.report(s.start("job "+name, s.jobCommand(name, script)))
}

func (s *site) jobCommand(name, script string) *exec.Cmd {
	return s.command("mete", "run", "-q", "--name", name, "--label", "is=job", "--json", filepath.Join(s.dir, name), "--", "sh", "-c", script)
}

func (s *site) report(job *program) *report.Report {
	s.t.Helper()
	job.wait()
	name := strings.TrimPrefix(job.name, "job ")
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		s.t.Fatalf("%v\n%s", err, &job.log)
	}
	r, err := report.Parse(b)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// waitStored waits until the agent has stored what it measured so far. Use that a killed agent has
// not stored is booked to the group's holder.
func (s *site) waitStored() {
	s.t.Helper()
	// windows is false while the agent does not answer, for example because its disk is slow.
	windows := func() (int64, bool) {
		var status struct{ Windows int64 }
		c, err := socket.Dial(filepath.Join(s.dir, "s"))
		if err == nil {
			defer func() { _ = c.Close() }()
			err = c.Status(s.t.Context(), &status)
		}
		if err != nil && !errors.Is(err, fault.ErrUnavailable) {
			s.t.Fatal(err)
		}
		return status.Windows, err == nil
	}
	var before int64
	s.node.await("its status", func() (ok bool) {
		before, ok = windows()
		return ok
	})
	s.node.await("a window", func() bool {
		n, ok := windows()
		return ok && n > before
	})
}

// An answer is the part of mete usage that the tests check.
type answer struct {
	Groups []struct {
		Job string   `json:"job"`
		CPU *float64 `json:"cpu_seconds"`
	} `json:"groups"`
	Total, Whole *struct {
		CPU float64 `json:"cpu_seconds"`
	}
}

// ask queries the use by job.
func (s *site) ask() (a answer) {
	s.t.Helper()
	c := s.command("mete", "usage", "--by", "job", "-o", "json", "--server", s.url, "--from", "-2h")
	c.Env = append(c.Env, "METE_TOKEN="+s.viewer)
	var log bytes.Buffer
	c.Stderr = &log
	out, err := c.Output()
	if err != nil {
		s.t.Fatalf("mete usage: %v\n%s", err, &log)
	}
	if err := json.Unmarshal(out, &a); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	return a
}

// checkBooked waits until the ledger has each job once, with the CPU time of its report, and checks
// that all rows sum to the machine's use.
func (s *site) checkBooked(reports ...*report.Report) {
	s.t.Helper()
	var wrong []string
	defer func() {
		for _, w := range wrong {
			s.t.Error(w)
		}
	}()
	s.server.await("the jobs as they are reported", func() bool {
		wrong = nil
		a := s.ask()
		for _, r := range reports {
			n, cpu := 0, 0.0
			for _, g := range a.Groups {
				if g.Job == r.Name && g.CPU != nil {
					n, cpu = n+1, cpu+*g.CPU
				}
			}
			ns, _ := r.Get(report.CPU)
			// The group includes starting the job and the report does not: much less than a job with
			// load, on any machine.
			if over := cpu - float64(ns)/1e9; n != 1 || over < -1e-6 || over > max(float64(ns)/1e9/2, 0.02) {
				wrong = append(wrong, fmt.Sprintf("job %s: %d rows with %.6f s, want one with %.6f s", r.Name, n, cpu, float64(ns)/1e9))
			}
		}
		if a.Total == nil || a.Whole == nil || math.Abs(a.Total.CPU-a.Whole.CPU) > 1e-6 {
			wrong = append(wrong, fmt.Sprintf("rows sum to %v, machine used %v", a.Total, a.Whole))
		}
		return len(wrong) == 0
	})
}
