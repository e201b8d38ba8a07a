package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// spin is a shell loop with CPU load.
const spin = `i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done`

// TestKilled kills and restarts server and agent while jobs run, and checks that each job is in the
// ledger once, with the CPU time of its report.
func TestKilled(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	t.Parallel()
	for _, c := range []struct{ name, reader, database string }{
		{"files and SQLite", "files", ""},
		{"bpf and SQLite", "bpf", ""},
		{"bpf and PostgreSQL", "bpf", "postgres"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var flags []string
			if c.reader == "bpf" {
				hosttest.Need(t, "bpf")
			}
			if c.database != "" {
				testkit.Stage(t, "postgres", "needs PostgreSQL")
				flags = []string{"--database", ledgertest.PostgreSQL(t)}
			}
			s := newSite(t)
			s.serve(flags...)
			s.measure("-reader", c.reader)
			var reports []*report.Report
			job := func(name string) { reports = append(reports, s.job(name, spin)) }

			job("first")
			// A job runs while the agent is down, and ends when it is back.
			mark, back := filepath.Join(s.dir, "mark"), filepath.Join(s.dir, "back")
			across := s.start("job across", s.jobCommand("across", "touch "+mark+"; "+spin+"; while ! [ -e "+back+" ]; do sleep 0.05; done; "+spin))
			across.await("the job runs", func() bool { _, err := os.Stat(mark); return err == nil })
			s.waitStored()
			s.node.kill()
			s.measure("-reader", c.reader)
			s.waitStored()
			if err := os.WriteFile(back, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			reports = append(reports, s.report(across))
			s.checkBooked(reports...)

			s.server.kill()
			job("meanwhile") // stays in the spool
			s.node.waitOutput("server unreachable")
			s.waitStored()
			s.node.kill()
			s.measure("-reader", c.reader)
			job("later")
			s.serve(flags...)
			s.node.waitOutput("server reached")
			job("last")
			s.checkBooked(reports...)
			if out := s.run("gaps", "--from", "-1h", "--server", s.url, "--token", s.viewer); !strings.Contains(out, "unwatched") {
				t.Errorf("mete gaps:\n%s\nwant that the agent was away", out)
			}

			s.node.stop()
			s.server.stop()
			if log := s.node.log.String(); strings.Contains(log, "level=ERROR") {
				t.Errorf("the agent says:\n%s", log)
			}
			if log := s.server.log.String(); strings.Contains(log, "level=ERROR") {
				t.Errorf("the server says:\n%s", log)
			}
		})
	}
}

// TestStartedWrongly checks that an agent with invalid settings reports the error and ends.
func TestStartedWrongly(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s, other := newSite(t), newSite(t)
	s.serve()
	other.serve()
	file := filepath.Join(s.dir, "file")
	if err := os.WriteFile(file, []byte("mete_"), 0o600); err != nil {
		t.Fatal(err)
	}
	once := s.run("token", "create", "--role", "agent", "--uses", "1")
	s.run("token", "revoke", s.id(once))
	short, made := s.run("token", "create", "--role", "agent", "--expires", "1s"), time.Now()
	for _, c := range []struct {
		name, flags, token string
		code               int
		want               []string
	}{
		{"no state", "-state " + file + "/state", s.token, 1, []string{"not a directory", "hint: make the directory writable"}},
		{"no URL", "-server mete.example.org", s.token, 2, []string{`server "mete.example.org"`, "hint: give it as https://"}},
		{"plain HTTP", "-server http://192.0.2.1:9797", s.token, 2, []string{"plain http works only on this machine", "hint: use https://192.0.2.1:9797"}},
		{"no token", "", "", 1, []string{"no token", "hint: make one with `mete token create --role agent`"}},
		{"no file", "-token-file " + file + "2", "", 1, []string{"-token-file", "no such file", "hint: make one with `mete token create"}},
		{"half a token", "-token-file " + file, "", 2, []string{"token", "hint: "}},
		{"another server's token", "", other.token, 1, []string{"another certificate authority", "hint: check the server's address"}},
		{"a viewer's token", "", s.viewer, 1, []string{"role", "hint: "}},
		{"a revoked token", "", once, 1, []string{"revoked", "hint: "}},
		{"an expired token", "", short, 1, []string{"expired at", "hint: "}},
		{"a spool too small", "-spool-cap 5", s.token, 2, []string{"-spool-cap", "from 1.00 MiB"}},
		{"an unknown reader", "-reader tea", s.token, 2, []string{"it is one of auto, bpf, files"}},
	} {
		if c.token == short {
			time.Sleep(time.Until(made.Add(1100 * time.Millisecond)))
		}
		state := filepath.Join(s.dir, "agent")
		cmd := s.agent(strings.Fields(c.flags)...)
		cmd.Env = append(cmd.Env, "METE_TOKEN="+c.token)
		p := s.start(c.name, cmd)
		p.wait()
		if code := cmd.ProcessState.ExitCode(); code != c.code {
			t.Errorf("%s: exit code %d, want %d:\n%s", c.name, code, c.code, &p.log)
		}
		for _, want := range append(c.want, "mete-agent: error: ") {
			if !strings.Contains(p.log.String(), want) {
				t.Errorf("%s: no %q in:\n%s", c.name, want, &p.log)
			}
		}
		if strings.Contains(p.log.String(), "measuring") {
			t.Errorf("%s: it measures:\n%s", c.name, &p.log)
		}
		if err := os.RemoveAll(state); err != nil {
			t.Fatal(err)
		}
	}
}

// id returns the id in a token.
func (s *site) id(token string) string { return strings.Split(token, "_")[1] }

// TestWaits checks that an agent waits for an unreachable server, needs no token once enrolled, and
// refuses to run twice.
func TestWaits(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	file := filepath.Join(s.dir, "token")
	if err := os.WriteFile(file, []byte(s.token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.server.stop()
	s.node = s.start("agent", s.agent("-token-file", file))
	s.node.waitOutput("cannot enroll yet; retrying")
	s.serve()
	s.node.waitOutput("msg=enrolled")
	s.node.waitOutput("server reached")
	if n := strings.Count(s.node.log.String(), "cannot enroll yet"); n != 1 {
		t.Errorf("%d messages that it cannot enroll, want 1:\n%s", n, &s.node.log)
	}
	// Another socket or a copy of the state does not make it another machine.
	if err := os.CopyFS(filepath.Join(s.dir, "copy"), os.DirFS(filepath.Join(s.dir, "agent"))); err != nil {
		t.Fatal(err)
	}
	const want = "measures this machine for this ledger already"
	state, socket := "-state "+filepath.Join(s.dir, "copy"), "-socket "+filepath.Join(s.dir, "s2")
	for _, flags := range []string{state, socket, state + " " + socket} {
		p := s.start("second agent", s.agent(strings.Fields(flags)...))
		p.wait()
		if code := p.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.log.String(), want) || !strings.Contains(p.log.String(), "hint: ") {
			t.Errorf("a second agent with %s: exit code %d, %s\nwant %q and a hint", flags, code, &p.log, want)
		}
	}
	s.node.stop()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.server.stop()
	s.node = s.start("agent", s.agent("-token-file", file))
	s.node.waitOutput("msg=measuring")
	s.node.waitOutput("server unreachable")
	s.serve()
	s.node.waitOutput("server reached")
	s.node.stop()
}

// TestDiskFull checks that the agent holds windows in memory while its disk is full, without loss,
// even if it is killed while the groups live.
func TestDiskFull(t *testing.T) {
	hosttest.Need(t, "root", "cgroup1")
	t.Parallel()
	s := newSite(t)
	state := filepath.Join(s.dir, "agent")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("mete-test", state, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("a file system cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	filler := filepath.Join(state, "filler")
	fill := func() {
		t.Helper()
		f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for n := 64 << 10; n > 0; { // until the disk is full
			if _, err := f.Write(make([]byte, n)); err != nil {
				n /= 2
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var reports []*report.Report
	s.serve()
	s.measure("-reader", "files", "-spool-cap", "1500000")
	reports = append(reports, s.job("before", spin))
	s.waitStored()
	fill()
	s.node.await("a full disk", func() bool {
		fill() // the spool may free some room for a moment
		return strings.Contains(s.node.log.String(), "the spool rejects windows")
	})
	reports = append(reports, s.job("full", spin))
	mark := filepath.Join(s.dir, "mark")
	across := s.start("job across", s.jobCommand("across", spin+"; while ! [ -e "+mark+" ]; do sleep 0.05; done"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.node.waitOutput("the spool accepts windows again")
	s.waitStored()
	fill()
	s.node.await("a full disk again", func() bool {
		fill()
		return strings.Count(s.node.log.String(), "the spool rejects windows") >= 2
	})
	s.node.kill()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.measure("-reader", "files", "-spool-cap", "1500000")
	s.waitStored()
	fill()
	s.node.await("a full disk", func() bool {
		fill()
		return strings.Contains(s.node.log.String(), "the spool rejects windows")
	})
	if err := s.node.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the agent ends", func() bool {
		fill() // until the disk is full
		select {
		case <-s.node.ended:
			return true
		default:
			return false
		}
	})
	if s.node.wait(); s.node.err != nil { // a full disk is not a failure
		t.Errorf("the agent after SIGTERM: %v", s.node.err)
	}
	// The last window may have used room that the spool freed before it.
	log := s.node.log.String()
	full := strings.LastIndex(log, "the spool rejects windows") > strings.LastIndex(log, "the spool accepts windows again")
	if full && !strings.Contains(log, `level=WARN msg="the last windows are not on disk`) {
		t.Errorf("no message about the windows that it could not store:\n%s", log)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.measure("-reader", "files", "-spool-cap", "1500000")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.checkBooked(append(reports, s.report(across))...)
	s.node.stop()
	s.server.stop()
}

// TestRevoked checks that an agent with a revoked node reports it once and keeps measuring into the
// spool. Enrolled again it is another node, and reports the undelivered windows of the former one.
func TestRevoked(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	s.measure()
	node := s.node.waitOutput(`msg=measuring node=(\S+)`)[1]
	s.node.waitOutput("server reached")
	if out := s.run("nodes", "revoke", node); !strings.HasPrefix(out, "revoked "+node+" (") {
		t.Errorf("mete nodes revoke says %q", out)
	}
	s.node.waitOutput(`level=ERROR msg="server denies this machine; windows wait in the spool".*node ` + node + ` is revoked.*hint=".*remove its identity`)
	s.waitStored()
	if n := strings.Count(s.node.log.String(), "server denies"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, &s.node.log)
	}
	s.node.stop()
	// The next agent starts as well.
	s.measure()
	s.node.waitOutput("server denies this machine")
	s.node.stop()
	if err := os.RemoveAll(filepath.Join(s.dir, "agent", "identity")); err != nil {
		t.Fatal(err)
	}
	s.measure()
	s.node.waitOutput(`level=WARN msg="data of a former node id is not sent; it is kept for 30 days" node=` + node)
	if again := s.node.waitOutput(`msg=measuring node=(\S+)`)[1]; again == node {
		t.Errorf("it is node %s again", node)
	}
	s.node.waitOutput("server reached")
	s.node.stop()
	s.server.stop()
}

// TestExpired checks that an agent with an expired certificate reports what to do, keeps measuring,
// and with a token for its node becomes that again, and sends what waited.
func TestExpired(t *testing.T) {
	testkit.Stage(t, "timing", "a certificate lives for 12 s of real time")
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	ctx, stop := context.WithCancel(t.Context())
	cfg := server.Default()
	cfg.State, cfg.Life = filepath.Join(s.dir, "server"), 12*time.Second
	srv, err := server.Open(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ln, err := server.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error { return srv.Run(ctx) })
	g.Go(func() error { return server.Serve(ctx, ln, srv.Handler(), srv.Authority.ServerTLS()) })
	defer func() {
		stop()
		if err := errors.Join(g.Wait(), srv.Close()); err != nil {
			t.Error(err)
		}
	}()
	s.url = "https://" + ln.Addr().String()
	if s.token, _, err = srv.Authority.Tokens().Create(ctx, registry.Token{Role: registry.Agent, Uses: 9}); err != nil {
		t.Fatal(err)
	}
	s.measure()
	node := s.node.waitOutput(`msg=measuring node=(\S+)`)[1]
	s.node.waitOutput("server reached")
	s.node.waitOutput(`level=ERROR msg="server denies this machine; windows wait in the spool".*certificate of node ` + node + ` is valid from .*hint="enroll the machine with a new token`)
	s.node.stop()

	// As after a long sleep, without the token.
	s.node = s.start("agent", s.agent())
	s.node.waitOutput(`level=ERROR msg="cannot renew this machine's identity; windows wait in the spool" node=` + node + `.*ended on .*no token.*hint="on the server's machine: mete token create`)
	s.node.waitOutput("msg=measuring node=" + node)
	s.waitStored()
	waited := time.Now()
	s.node.stop()

	// It sent data a moment ago: only with a token for this node it becomes the node again.
	if s.token, _, err = srv.Authority.Tokens().Create(ctx, registry.Token{Role: registry.Agent, Node: node, Uses: 1}); err != nil {
		t.Fatal(err)
	}
	s.measure()
	s.node.waitOutput("msg=measuring node=" + node)
	s.node.waitOutput("server reached")
	s.node.await("what waited, booked", func() bool {
		nodes, err := srv.Ledger.Nodes(ctx, query.Scope{All: true})
		if err != nil || len(nodes) != 1 {
			t.Fatalf("nodes %+v, %v; want one", nodes, err)
		}
		return nodes[0].Through.After(waited)
	})
	s.node.stop()
}
