package run_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/app/agent"
	"mete.dev/mete/internal/app/up"
	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/job/socket"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/pki/ca"
	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/otheruser"
)

// loopback is the address of servers.
var loopback = testkit.Loopback()

// A bench is a server that can be stopped and restarted.
type bench struct {
	*server.Server
	t     *testing.T
	state string
	addr  string
	stop  func()
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, state: t.TempDir(), addr: loopback + ":0"}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *bench) start() {
	b.t.Helper()
	cfg := server.Default()
	cfg.State, cfg.Names = b.state, []string{loopback}
	s, err := server.Open(context.Background(), cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		b.t.Fatal(err)
	}
	ln, err := server.Listen(context.Background(), b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Server, b.addr = s, ln.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	var g errgroup.Group
	g.Go(func() error { return s.Run(ctx) })
	g.Go(func() error { return server.Serve(ctx, ln, s.Handler(), s.Authority.ServerTLS()) })
	b.stop = sync.OnceFunc(func() {
		stop()
		if err := errors.Join(g.Wait(), s.Close()); err != nil {
			b.t.Error(err)
		}
	})
}

func (b *bench) url() string { return "https://" + b.addr }

// program returns a mete with a token for one enrollment.
func (b *bench) program() *mete {
	b.t.Helper()
	text, _, err := b.Authority.Tokens().Create(b.t.Context(), registry.Token{Role: registry.Agent, Cluster: "lab", Uses: 1})
	if err != nil {
		b.t.Fatal(err)
	}
	m := program(b.t)
	m.env = append(m.env, "METE_TOKEN="+text, "METE_SOCKET="+filepath.Join(m.dir, "none"))
	return m
}

// Values of --server-wait: as long as a reachable server needs, or almost nothing.
const (
	patient = "--server-wait=1000h"
	hasty   = "--server-wait=1s"
)

// job returns the ledger's group of a job.
func (b *bench) job(name string) (query.Group, bool) {
	b.t.Helper()
	for _, g := range b.answer().Groups {
		if g.Keys[0] == name {
			return g, true
		}
	}
	return query.Group{}, false
}

// answer queries the ledger by some dimension; the default is by job.
func (b *bench) answer(by ...query.Dimension) *query.Answer {
	b.t.Helper()
	if by == nil {
		by = []query.Dimension{query.ByJob}
	}
	now := time.Now()
	a, err := b.Ledger.Usage(b.t.Context(), query.Query{From: now.Add(-time.Hour), To: now.Add(time.Hour),
		By: by, Scope: query.Scope{All: true}})
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// equal compares a job in the ledger with its report.
func (b *bench) equal(name string, r *report.Report) {
	b.t.Helper()
	g, ok := b.job(name)
	if !ok {
		b.t.Errorf("job %s is not in the ledger", name)
		return
	}
	for key, res := range map[report.Key]usage.Resource{
		report.CPU: usage.CPU, report.CPUUser: usage.CPUUser, report.CPUSystem: usage.CPUSystem, report.CPUThrottled: usage.CPUThrottled,
		report.MemoryPeak: usage.MemoryPeak, report.DiskRead: usage.DiskRead, report.DiskWritten: usage.DiskWritten,
		report.NetworkRx: usage.NetworkRx, report.NetworkTx: usage.NetworkTx, report.Processes: usage.Processes,
		report.PIDsPeak: usage.PIDsPeak, report.OOMKills: usage.OOMKills,
	} {
		want, has := r.Get(key)
		if got := g.Usage.Sum[res].String(); g.Usage.Present.Has(res) != has || has && got != fmt.Sprint(want) {
			b.t.Errorf("job %s: %v: the ledger has %s (%v), the report %d (%v)", name, res, got, g.Usage.Present.Has(res), want, has)
		}
	}
	var sum int64
	for _, res := range usage.Energies {
		sum += g.Usage.Sum[res].Int64()
	}
	want, _ := r.Get(report.Energy)
	off, _ := r.Get(report.EnergyError)
	if got := g.Usage.Sum[usage.EnergyError].Int64(); sum != want || got != off || sum == 0 {
		b.t.Errorf("job %s: the ledger has %d +-%d uJ, the report %d +-%d", name, sum, got, want, off)
	}
}

func (b *bench) workload(name string) query.Workload {
	b.t.Helper()
	now := time.Now()
	ws, err := b.Ledger.Workloads(b.t.Context(), query.Query{From: now.Add(-time.Hour), To: now.Add(time.Hour), Scope: query.Scope{All: true}})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, w := range ws {
		if w.Name.Name == name {
			return w
		}
	}
	b.t.Fatalf("workload %s is not in the ledger", name)
	return query.Workload{}
}

func (b *bench) nodes() []query.Node {
	b.t.Helper()
	nodes, err := b.Ledger.Nodes(b.t.Context(), query.Scope{All: true})
	if err != nil {
		b.t.Fatal(err)
	}
	return nodes
}

const burn = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; "

// TestServer checks that without an agent the ledger has the job as in its report, with name,
// labels and end, and nothing about the machine as a whole.
func TestServer(t *testing.T) {
	b := newBench(t)
	m := b.program()
	r, out := m.job("--server", b.url(), patient, "--name", "nightly", "--label", "team=web", "--", "sh", "-c", burn+"sleep 1.2; "+burn+"exit 3")
	if out.code != 3 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.equal("nightly", r)
	w := b.workload("nightly")
	if w.Key != r.ID || w.Exit == nil || *w.Exit != 3 || w.User == "" || w.Ended.IsZero() || w.Path != r.Group {
		t.Errorf("the ledger knows %+v", w)
	}
	a := b.answer("label:team")
	if a.Gaps != 0 || len(a.Groups) != 1 || a.Groups[0].Keys[0] != "web" {
		t.Errorf("%d gaps, groups %+v", a.Gaps, a.Groups)
	}
	// The job does not get the sender's token.
	out = m.run("run", "-q", "--server", b.url(), patient, "--", "env")
	if out.code != 0 || !strings.Contains(out.stdout, "METE_STATE=") || strings.Contains(out.stdout, "METE_TOKEN") {
		t.Errorf("exit %d: the job's environment is %s%s", out.code, out.stdout, out.stderr)
	}
	if a.Capacity.Present != 0 {
		t.Errorf("capacity of the machine is %+v, want none", a.Capacity)
	}
	if n := b.nodes(); len(n) != 1 || n[0].State != "live" || n[0].CPUs != 0 {
		t.Errorf("nodes %+v", n)
	}
	// The enrolled machine needs no token, and reuses the slot.
	m.env = append(m.env, "METE_TOKEN=")
	r, out = m.job("--server", b.url(), patient, "--name", "second", "--", "sh", "-c", burn)
	if out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.equal("second", r)
	if n := b.nodes(); len(n) != 1 || n[0].Streams != 1 {
		t.Errorf("nodes %+v, want one with one stream", n)
	}
}

// TestServerRefused checks that errors that a person must fix stop mete run before the command
// starts.
func TestServerRefused(t *testing.T) {
	b := newBench(t)
	for what, c := range map[string]struct {
		args []string
		env  string
		want string
	}{
		"no token":      {[]string{"--server", b.url(), patient}, "METE_TOKEN=", "mete token create"},
		"half a token":  {[]string{"--server", b.url(), patient}, "METE_TOKEN=mete_abc", "cut off"},
		"no file":       {[]string{"--server", b.url(), patient, "--token-file", "nosuch"}, "", "nosuch"},
		"no server":     {[]string{"--token-file", "x"}, "", "no server given"},
		"empty server":  {[]string{"--server", ""}, "", "no server given"},
		"not an URL":    {[]string{"--server", "here"}, "", "https://host:port"},
		"plain HTTP":    {[]string{"--server", "http://192.0.2.1:9"}, "", "use https"},
		"negative wait": {[]string{"--server", b.url(), "--server-wait", "-1s"}, "", "--server-wait"},
	} {
		m := b.program()
		if c.env != "" {
			m.env = append(m.env, c.env)
		}
		started := filepath.Join(t.TempDir(), "started")
		out := m.run(slices.Concat([]string{"run"}, c.args, []string{"--", "touch", started})...)
		if _, err := os.Stat(started); out.code != 125 || !strings.Contains(out.stderr, c.want) || err == nil {
			t.Errorf("%s: exit %d, started %v: %s", what, out.code, err == nil, out.stderr)
		}
	}
	// Used up.
	m := b.program()
	if out := m.run("run", "-q", "--server", b.url(), patient, "--", "true"); out.code != 0 {
		t.Fatal(out.stderr)
	}
	m.env = append(m.env, "METE_STATE="+t.TempDir())
	if out := m.run("run", "-q", "--server", b.url(), patient, "--", "true"); out.code != 125 || !strings.Contains(out.stderr, "mete token create") {
		t.Errorf("a used token: exit %d: %s", out.code, out.stderr)
	}
}

// TestServerAway checks that an unreachable server only adds a note, and that the next job sends
// what waited, also if the server was never reachable before.
func TestServerAway(t *testing.T) {
	b := newBench(t)
	m := b.program()
	never := b.program()
	if out := m.run("run", "-q", "--server", b.url(), patient, "--name", "first", "--", "true"); out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.stop()
	away, out := m.job("--server", b.url(), hasty, "--name", "away", "--", "sh", "-c", burn+"exit 4")
	if out.code != 4 || !strings.Contains(out.stderr, "not in the ledger of "+b.url()+" yet: ") || !strings.Contains(out.stderr, "it waits in "+m.dir) {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	if out := never.run("run", "-q", "--server", b.url(), hasty, "--", "sh", "-c", "exit 5"); out.code != 5 || !strings.Contains(out.stderr, "it is in no ledger") {
		t.Errorf("without an identity: exit %d: %s", out.code, out.stderr)
	}
	b.start()
	if _, ok := b.job("away"); ok {
		t.Fatal("the job is already in the ledger")
	}
	last, out := m.job("--server", b.url(), patient, "--name", "last", "--", "true")
	if out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.equal("away", away)
	b.equal("last", last)
	if a := b.answer(); a.Gaps != 0 || len(a.Groups) != 3 {
		t.Errorf("%d gaps, %d jobs", a.Gaps, len(a.Groups))
	}
	// The server starts while the first job runs.
	b.stop()
	c := never.command("run", "-q", "--json", filepath.Join(never.dir, "late.json"), "--server", b.url(), patient, "--name", "late", "--", "sh", "-c", "read x; "+burn)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	c.Stderr = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the job runs", func() bool { return len(children(c.Process.Pid)) > 0 })
	b.start()
	if err := errors.Join(in.Close(), c.Wait()); err != nil || said.String() != "" {
		t.Fatalf("%v: %s", err, &said)
	}
	late, err := os.ReadFile(filepath.Join(never.dir, "late.json"))
	if err != nil {
		t.Fatal(err)
	}
	rep, err := report.Parse(late)
	if err != nil {
		t.Fatal(err)
	}
	b.equal("late", rep)
}

// TestServerDrain checks that one later job sends what concurrent jobs could not send.
func TestServerDrain(t *testing.T) {
	b := newBench(t)
	m := b.program()
	// Brackets are also in the directory of a server at an IPv6 address.
	state := filepath.Join(m.dir, "[__1]_9797")
	m.env = append(m.env, "METE_STATE="+state)
	if out := m.run("run", "-q", "--server", b.url(), patient, "--", "true"); out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.stop()
	long := m.command("run", "-q", "--server", b.url(), hasty, "--name", "long", "--", "cat")
	in, err := long.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := long.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the job runs", func() bool { return len(children(long.Process.Pid)) > 0 })
	short, out := m.job("--server", b.url(), hasty, "--name", "short", "--", "sh", "-c", burn)
	if out.code != 0 || !strings.Contains(out.stderr, "it waits in ") {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	if err := errors.Join(in.Close(), long.Wait()); err != nil {
		t.Fatal(err)
	}
	b.start()
	if out := m.run("run", "-q", "--server", b.url(), patient, "--", "true"); out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.equal("short", short)
	if _, ok := b.job("long"); !ok || b.answer().Gaps != 0 {
		t.Errorf("the other job is there: %v, %d gaps", ok, b.answer().Gaps)
	}
	if left, err := fs.Glob(os.DirFS(state), "origin/*/spool/*/*/debt.json"); err != nil || len(left) > 0 {
		t.Errorf("%v: left to send: %v", err, left)
	}
}

// children returns the child processes of a process.
func children(pid int) (all []string) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil
	}
	for _, f := range tasks {
		// The thread may have ended.
		if b, err := os.ReadFile(f); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return all
}

// TestServerParallel checks that concurrent jobs, also the first of a state directory, are one node
// with separate figures.
func TestServerParallel(t *testing.T) {
	b := newBench(t)
	m := b.program()
	const jobs = 6
	reports := make([]*report.Report, jobs)
	var g errgroup.Group
	for i := range jobs {
		g.Go(func() error {
			file := filepath.Join(m.dir, fmt.Sprintf("%d.json", i))
			c := m.command("run", "-q", "--json", file, "--server", b.url(), patient, "--name", fmt.Sprint("job", i), "--", "sh", "-c", burn)
			if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
				return fmt.Errorf("job %d: %v: %s", i, err, out)
			}
			text, err := os.ReadFile(file)
			if err == nil {
				reports[i], err = report.Parse(text)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for i, r := range reports {
		b.equal(fmt.Sprint("job", i), r)
	}
	if n := b.nodes(); len(n) != 1 {
		t.Errorf("nodes %+v, want one", n)
	}
	if a := b.answer(); a.Gaps != 0 || len(a.Groups) != jobs {
		t.Errorf("%d gaps, %d jobs", a.Gaps, len(a.Groups))
	}
}

// TestServerKilled checks that the figures of a job whose mete run was killed are booked, with a
// gap for the rest.
func TestServerKilled(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	before := time.Now().Truncate(time.Second)
	c := m.command("run", "-q", "--server", b.url(), patient, "--name", "lost", "--", "sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "a window is booked", func() bool {
		g, ok := b.job("lost")
		return ok && g.Usage.Present.Has(usage.CPU) && g.Usage.Sum[usage.CPU].String() != "0"
	})
	kids := children(c.Process.Pid)
	_ = c.Process.Kill()
	_ = c.Wait() // killed
	for _, pid := range kids {
		if err := exec.Command("kill", "-9", pid).Run(); err != nil {
			t.Error(err)
		}
	}
	if out := m.run("run", "-q", "--server", b.url(), patient, "--name", "next", "--", "true"); out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	now := time.Now()
	gaps, err := b.Ledger.Gaps(t.Context(), now.Add(-time.Hour), now.Add(time.Hour), "", query.Scope{All: true})
	if err != nil || len(gaps) != 1 || gaps[0].Reason != usage.Killed || !strings.Contains(gaps[0].Detail, "lost") || gaps[0].From.Before(before) || gaps[0].To.Before(gaps[0].From) {
		t.Errorf("%v: gaps %+v, want one of the job", err, gaps)
	}
	// The gap is reported once.
	if out := m.run("run", "-q", "--server", b.url(), patient, "--name", "next", "--", "true"); out.code != 0 || b.answer().Gaps != 1 {
		t.Errorf("exit %d, %d gaps: %s", out.code, b.answer().Gaps, out.stderr)
	}
}

// TestServerNested checks that a nested job is refused, because the outer job includes its use.
func TestServerNested(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	inner := []string{os.Args[0], "run", "--server", b.url(), patient, "--name", "inner", "--", "true"}
	outer := func(args ...string) result {
		return m.run(slices.Concat([]string{"run", "-q", "--server", b.url(), patient, "--name", "outer", "--", "env", "METE_TEST_MAIN=1"}, args)...)
	}
	out := outer(inner...)
	if out.code != 125 || !strings.Contains(out.stderr, "measures the control group /") || !strings.Contains(out.stderr, "hint: this command is part of that job") {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	// Without --server the nested job runs.
	if out := outer(os.Args[0], "run", "-q", "--", "true"); out.code != 0 || out.stderr != "" {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
	if a := b.answer(); len(a.Groups) != 1 || a.Groups[0].Keys[0] != "outer" {
		t.Errorf("the ledger has %+v", a.Groups)
	}
}

// TestServerBesideAgent checks that a job is not sent if an agent measures the machine for the same
// ledger, and that an agent that starts while the job runs takes over.
func TestServerBesideAgent(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	whole := func() *exclusive.Claim {
		t.Helper()
		c, err := exclusive.AcquireMachine(t.Context(), h, enroll.LedgerID(b.Authority.CA()), log)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := whole()
	out := m.run("run", "-q", "--server", b.url(), patient, "--", "sh", "-c", "exit 6")
	if out.code != 6 || !strings.Contains(out.stderr, fmt.Sprintf("process %d of user 0 measures this machine", os.Getpid())) {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
	if a := b.answer(); len(a.Groups) != 0 {
		t.Errorf("the ledger has %+v", a.Groups)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	// Nor while the agent is down, because it books the job later.
	ledger := enroll.LedgerID(b.Authority.CA())
	if err := exclusive.Mark(m.dir, ledger); err != nil {
		t.Fatal(err)
	}
	out = m.run("run", "-q", "--server", b.url(), patient, "--", "sh", "-c", "exit 7")
	file, _ := exclusive.Marked(m.dir, ledger)
	if out.code != 7 || !strings.Contains(out.stderr, "is down and will book") || !strings.Contains(out.stderr, file) || len(b.answer().Groups) != 0 {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	run := m.command("run", "-q", "--server", b.url(), patient, "--name", "early", "--", "cat")
	in, err := run.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	run.Stderr = &said
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the job runs", func() bool { return len(children(run.Process.Pid)) > 0 })
	c = whole() // returns once the job has handed over
	if err := errors.Join(in.Close(), run.Wait()); err != nil || !strings.Contains(said.String(), "started while the job ran") {
		t.Errorf("%v: %s", err, &said)
	}
	if _, ok := b.job("early"); !ok {
		t.Error("what the job used before is not in the ledger")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestServerForeignClaim checks that another user's claim of the machine blocks neither a job nor
// an agent, and that the job still detects an agent.
func TestServerForeignClaim(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	pid, _ := otheruser.Hold(t, enroll.LedgerID(b.Authority.CA()), otheruser.Listening, "/")
	r, out := m.job("--server", b.url(), patient, "--name", "booked", "--", "true")
	if out.code != 0 {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	b.equal("booked", r)
	if want := fmt.Sprintf("process %d of user %d claims to measure this machine", pid, otheruser.OtherUID); !slices.ContainsFunc(r.Notes, func(n string) bool { return strings.HasPrefix(n, want) }) {
		t.Errorf("notes %q, want %q", r.Notes, want)
	}

	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent, Cluster: "lab", Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := agent.Default()
	cfg.Server, cfg.Token, cfg.State, cfg.Socket, cfg.Status, cfg.Machine.Reader = b.url(), text, t.TempDir(), "", "", "files"
	ctx, stop := context.WithCancel(t.Context())
	measuring, ended := make(chan bool, 1), make(chan error, 1)
	log := slog.New(slog.NewTextHandler(writer(func(line string) {
		if strings.Contains(line, "msg=measuring") {
			measuring <- true
		}
	}), nil))
	go func() { ended <- agent.Run(ctx, cfg, io.Discard, log) }()
	select {
	case <-measuring:
	case err := <-ended:
		t.Fatalf("the agent ended: %v", err)
	}
	out = m.run("run", "-q", "--server", b.url(), patient, "--name", "doubled", "--", "true")
	if want := fmt.Sprintf("process %d of user 0 measures this machine", os.Getpid()); out.code != 0 || !strings.Contains(out.stderr, want) {
		t.Errorf("exit %d: %s, want %q", out.code, out.stderr, want)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, ok := b.job("doubled"); ok {
		t.Error("a job that the agent measures was sent too")
	}
}

// TestServerAgentAway checks that what a job sent while the machine's agent was down counts once when the
// agent is back and books that time too.
func TestServerAgentAway(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	text, _, err := b.Authority.Tokens().Create(t.Context(), registry.Token{Role: registry.Agent, Cluster: "lab", Uses: 1})
	if err != nil {
		t.Fatal(err)
	}
	cfg := agent.Default()
	cfg.Server, cfg.Token, cfg.State, cfg.Socket, cfg.Status, cfg.Machine.Reader = b.url(), text, t.TempDir(), "", "", "files"
	cfg.Machine.Window = 2 * time.Second
	measure := func(until func()) {
		t.Helper()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- agent.Run(ctx, cfg, io.Discard, slog.New(slog.DiscardHandler)) }()
		until()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	ofMachine := func() (through time.Time) {
		for _, n := range b.nodes() {
			if !registry.IsJobsMachine(n.MachineID) {
				through = n.Through
			}
		}
		return through
	}
	measure(func() {
		testkit.Eventually(t, "the agent's first windows are in the ledger", func() bool { return !ofMachine().IsZero() })
	})
	_, out := m.job("--server", b.url(), patient, "--name", "away", "--", "sh", "-c", burn)
	ended := time.Now()
	if out.code != 0 {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	if _, ok := b.job("away"); !ok {
		t.Fatal("the job is not in the ledger")
	}
	measure(func() {
		testkit.Eventually(t, "the agent booked the time of the job", func() bool { return ofMachine().After(ended) })
	})
	if g, ok := b.job("away"); ok {
		t.Errorf("the job counts beside the machine, which includes it: %+v", g)
	}
	now := time.Now()
	a, err := b.Ledger.Usage(t.Context(), query.Query{From: now.Add(-time.Hour), To: now.Add(time.Hour), By: []query.Dimension{query.ByJob}, Scope: query.Scope{All: true}, Nested: query.NestedOnly})
	if err != nil || len(a.Groups) != 1 || a.Groups[0].Keys[0] != "away" {
		t.Errorf("within the machine are %+v, %v; want the job", a, err)
	}
}

type writer func(line string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

// TestServerOrdinaryUser checks that an unprivileged user can send, with apportioned figures if
// there are no groups.
func TestServerOrdinaryUser(t *testing.T) {
	hosttest.Need(t, "root")
	b := newBench(t)
	m := b.program()
	const nobody = 65534
	for dir := m.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(m.dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	prog := filepath.Join(m.dir, "mete") // the test binary is in a directory of root
	text, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(prog, text, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) result {
		c := exec.Command(prog, args...)
		c.Env, c.Dir = m.env, m.dir
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		return finish(t, c)
	}
	out := as("run", "-q", "--json", "report.json", "--server", b.url(), patient, "--name", "user", "--", "sh", "-c", burn)
	if out.code != 0 || out.stderr != "" {
		t.Fatalf("exit %d: %s", out.code, out.stderr)
	}
	file, err := os.ReadFile(filepath.Join(m.dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := report.Parse(file)
	if err != nil {
		t.Fatal(err)
	}
	b.equal("user", r)
	if got := "user " + b.workload("user").User; got != "user nobody" {
		t.Errorf("the workload is of %s", got)
	}
	// Process trees of the user are distinct, and a nested one is refused.
	out = as("run", "-q", "--server", b.url(), patient, "--name", "outer", "--", "env", "METE_TEST_MAIN=1", prog, "run", "--server", b.url(), patient, "--", "true")
	if out.code != 125 || !strings.Contains(out.stderr, "measures ") {
		t.Errorf("exit %d: %s", out.code, out.stderr)
	}
}

// A slowAgent is an agent that does not have the end of a job on disk at first.
type slowAgent struct{ left atomic.Int32 }

func (*slowAgent) Key(_ socket.Peer, id string) string         { return id }
func (*slowAgent) Project(socket.Peer, string) (string, error) { return "", nil }
func (*slowAgent) Snapshot(context.Context) error              { return nil }
func (*slowAgent) Status() any                                 { return nil }
func (*slowAgent) Register(string, socket.Job) (socket.Registration, error) {
	return socket.Registration{}, nil
}

func (a *slowAgent) End(context.Context, string, socket.Outcome) error {
	if a.left.Add(-1) >= 0 {
		return fault.ErrUnavailable
	}
	return nil
}

// TestEndIsTriedAgain checks that mete run reports the end of a job until the agent has it on disk.
func TestEndIsTriedAgain(t *testing.T) {
	m := program(t)
	sock := filepath.Join(shortDir(t), "agent.sock")
	m.env = append(m.env, "METE_SOCKET="+sock)
	a := &slowAgent{}
	a.left.Store(3)
	s, err := socket.Listen(sock, a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	r, out := m.job("--", "true")
	if r.InLedgerByName == nil || !*r.InLedgerByName || a.left.Load() > -1 { // an end whose answer is late is repeated
		t.Errorf("in the ledger by name: %v, %d ends: %s", r.InLedgerByName, 3-a.left.Load(), out.stderr)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestLongCommand checks that a job is registered however long its command line is.
func TestLongCommand(t *testing.T) {
	m := program(t)
	sock := filepath.Join(shortDir(t), "agent.sock")
	m.env = append(m.env, "METE_SOCKET="+sock)
	s, err := socket.Listen(sock, &slowAgent{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	// The limit of the kernel is 128 KiB for an argument.
	r, out := m.job("--", "true", strings.Repeat("x", 100<<10))
	if r.InLedgerByName == nil || !*r.InLedgerByName {
		t.Errorf("in the ledger by name: %v, notes %q, %s", r.InLedgerByName, r.Notes, out.stderr)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A projectAgent is an agent of a machine whose administrator gave this user the project shop.
type projectAgent struct {
	slowAgent
	project atomic.Pointer[string] // of the latest job
}

func (*projectAgent) Project(_ socket.Peer, wanted string) (string, error) {
	return socket.Projects{1234: "shop"}.Of(1234, wanted)
}

func (a *projectAgent) Register(_ string, j socket.Job) (socket.Registration, error) {
	a.project.Store(&j.Project)
	return socket.Registration{}, nil
}

// TestProject checks that a job is registered with the project of --project, that a job which may not use
// it does not start, and that one without an agent starts and says that nothing books it so.
func TestProject(t *testing.T) {
	m := program(t)
	sock := filepath.Join(shortDir(t), "agent.sock")
	m.env = append(m.env, "METE_SOCKET="+sock)
	if out := m.run("run", "-q", "--project", "shop", "--", "true"); out.code != 0 || !strings.Contains(out.stderr, "not booked to project shop") {
		t.Errorf("without an agent: exit %d, %s", out.code, out.stderr)
	}
	a := &projectAgent{}
	s, err := socket.Listen(sock, a, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for _, args := range [][]string{{"--project", "shop"}, nil} {
		out := m.run(append(append([]string{"run", "-q"}, args...), "--", "true")...)
		if p := a.project.Load(); out.code != 0 || out.stderr != "" || p == nil || *p != "shop" {
			t.Errorf("%q: exit %d, %s, project %v", args, out.code, out.stderr, p)
		}
	}
	out := m.run("run", "-q", "--project", "bank", "--", "touch", filepath.Join(m.dir, "started"))
	if out.code != 125 || !strings.Contains(out.stderr, `--project: project "bank"`) || !strings.Contains(out.stderr, socket.ProjectsFile) {
		t.Errorf("another's project: exit %d, %s", out.code, out.stderr)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "started")); err == nil {
		t.Error("the command of a job that was refused has started")
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestOwnServer checks that --server with the address of the server whose agent measures this machine, as
// that of mete up, is not complained about: the job is registered, and that server gets its use.
func TestOwnServer(t *testing.T) {
	up := httptest.NewServer(http.NotFoundHandler()) // it enrolls no senders
	t.Cleanup(up.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(up.URL, "http://"), ":")
	m := program(t)
	sock := filepath.Join(shortDir(t), "agent.sock")
	m.env = append(m.env, "METE_SOCKET="+sock)
	s, err := socket.Listen(sock, &upAgent{url: up.URL + "/v1/self"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for _, server := range []string{up.URL, "http://localhost:" + port} {
		if out := m.run("run", "-q", "--server", server, "--", "true"); out.code != 0 || out.stderr != "" {
			t.Errorf("--server %s: exit %d, %s", server, out.code, out.stderr)
		}
	}
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	if out := m.run("run", "-q", "--server", other.URL, "--", "true"); out.code != 0 || !strings.Contains(out.stderr, "not sending it to "+other.URL) {
		t.Errorf("another server: exit %d, %s", out.code, out.stderr)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An upAgent is the agent of a server with an address.
type upAgent struct {
	slowAgent
	url string
}

func (a *upAgent) Register(string, socket.Job) (socket.Registration, error) {
	return socket.Registration{Self: &socket.SelfAccess{URL: a.url, Token: "t"}}, nil
}

// TestAgentDown checks that the report of a job says that it is not in the ledger by name where a
// killed agent left its socket, and nothing of it without an agent.
func TestAgentDown(t *testing.T) {
	m := program(t)
	sock := filepath.Join(m.dir, "agent.sock")
	m.env = append(m.env, "METE_SOCKET="+sock)
	if r, out := m.job("--", "true"); r.InLedgerByName != nil || strings.Contains(out.stderr, report.NotInLedger) {
		t.Errorf("without an agent: %v, %s", r.InLedgerByName, out.stderr)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, out := m.job("--", "true")
	if r.InLedgerByName == nil || *r.InLedgerByName || out.code != 0 || out.stderr != "mete: true: not in the ledger by name\n" {
		t.Errorf("quietly: %v, exit %d, %q", r.InLedgerByName, out.code, out.stderr)
	}
	for form, want := range map[string]string{"text": "\n  not in the ledger by name\n  note: this machine's agent is down\n", "json": `"in_ledger_by_name": false`} {
		if out := m.run("run", "-o", form, "--", "true"); !strings.Contains(out.stderr, want) {
			t.Errorf("-o %s: %s\nwant %q", form, out.stderr, want)
		}
	}
}

// TestAgentComesLater checks that an agent that starts while the job runs gets its name: within a
// second, or at the latest at the end.
func TestAgentComesLater(t *testing.T) {
	hosttest.Need(t, "root")
	for name, await := range map[string]bool{"long": true, "short": false} {
		t.Run(name, func(t *testing.T) {
			m := program(t)
			sock := filepath.Join(m.dir, "agent.sock")
			m.env = append(m.env, "METE_SOCKET="+sock)
			run := m.command("run", "-q", "--name", name, "--", "cat")
			in, err := run.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := run.Start(); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, "the job runs", func() bool { return len(children(run.Process.Pid)) > 0 })
			cfg := up.DefaultAllInOne(filepath.Join(m.dir, "up"))
			cfg.Agent.Socket = sock
			cfg.Agent.Machine.Window = 2 * time.Second
			up, err := up.OpenAllInOne(t.Context(), cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := up.Close(); err != nil {
					t.Error(err)
				}
			}()
			named := func() bool {
				r := httptest.NewRequest("GET", "/v1/workloads?from=-1h&where=job="+name, nil)
				w := httptest.NewRecorder()
				ca.TrustLocal(up.Handler()).ServeHTTP(w, r)
				return strings.Contains(w.Body.String(), `"name":"`+name+`"`)
			}
			if await {
				testkit.Eventually(t, "the ledger has the name while the job runs", named)
			}
			if err := errors.Join(in.Close(), run.Wait()); err != nil {
				t.Error(err)
			}
			testkit.Eventually(t, "the ledger has the name", named)
		})
	}
}
