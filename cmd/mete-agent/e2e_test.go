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

// spin computes for a while, in a shell.
const spin = `i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done`

// Server and agent are killed and started again while jobs run: each job is in
// the ledger once, with the CPU time of its report.
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
			// A job goes on while the agent is away, and ends when it is back.
			mark, back := filepath.Join(s.dir, "mark"), filepath.Join(s.dir, "back")
			across := s.start("job across", s.jobCommand("across", "touch "+mark+"; "+spin+"; while ! [ -e "+back+" ]; do sleep 0.05; done; "+spin))
			across.await("that it runs", func() bool { _, err := os.Stat(mark); return err == nil })
			s.kept()
			s.node.kill()
			s.measure("-reader", c.reader)
			s.kept()
			if err := os.WriteFile(back, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			reports = append(reports, s.report(across))
			s.books(reports...)

			s.server.kill()
			job("meanwhile") // waits in the spool
			s.node.says("server unreachable")
			s.kept()
			s.node.kill()
			s.measure("-reader", c.reader)
			job("later")
			s.serve(flags...)
			s.node.says("server reached")
			job("last")
			s.books(reports...)
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

// An agent that is started wrongly says what is wrong, and ends.
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
		{"plain HTTP", "-server http://192.0.2.1:9797", s.token, 2, []string{"http is for a server on this machine only", "hint: use https://192.0.2.1:9797"}},
		{"no token", "", "", 1, []string{"no token", "hint: make one with `mete token create --role agent`"}},
		{"no file", "-token-file " + file + "2", "", 1, []string{"-token-file", "no such file", "hint: make one with `mete token create"}},
		{"half a token", "-token-file " + file, "", 2, []string{"token", "hint: "}},
		{"another server's token", "", other.token, 1, []string{"another certificate authority", "hint: check the server's address"}},
		{"a viewer's token", "", s.viewer, 1, []string{"role", "hint: "}},
		{"a revoked token", "", once, 1, []string{"revoked", "hint: "}},
		{"an expired token", "", short, 1, []string{"expired at", "hint: "}},
		{"a spool too small", "-spool-cap 5", s.token, 2, []string{"cap of 5 bytes"}},
		{"an unknown reader", "-reader tea", s.token, 2, []string{"hint: readers are"}},
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

// id is the part of a token by which it is known.
func (s *site) id(token string) string { return strings.Split(token, "_")[1] }

// An agent waits for a server that cannot be reached, needs its token no more
// once it has enrolled, and refuses to run twice.
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
	s.node.says("cannot enroll yet; trying on")
	s.serve()
	s.node.says("msg=enrolled")
	s.node.says("server reached")
	if n := strings.Count(s.node.log.String(), "cannot enroll yet"); n != 1 {
		t.Errorf("it says %d times that it cannot enroll, want once:\n%s", n, &s.node.log)
	}
	// Neither another socket nor a copy of the state makes it another machine.
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
	s.node.says("msg=measuring")
	s.node.says("server unreachable")
	s.serve()
	s.node.says("server reached")
	s.node.stop()
}

// While the agent's disk is full it holds windows in memory; nothing is lost, also
// where it is killed meanwhile and the groups live on.
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
		for n := 64 << 10; n > 0; { // to the last byte
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
	s.kept()
	fill()
	s.node.await("that there is no room", func() bool {
		fill() // what the spool gave up makes room for a moment
		return strings.Contains(s.node.log.String(), "the spool takes no windows")
	})
	reports = append(reports, s.job("full", spin))
	mark := filepath.Join(s.dir, "mark")
	across := s.start("job across", s.jobCommand("across", spin+"; while ! [ -e "+mark+" ]; do sleep 0.05; done"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.node.says("the spool takes windows again")
	s.kept()
	fill()
	s.node.await("that there is no room again", func() bool {
		fill()
		return strings.Count(s.node.log.String(), "the spool takes no windows") >= 2
	})
	s.node.kill()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.measure("-reader", "files", "-spool-cap", "1500000")
	s.kept()
	fill()
	s.node.await("that there is no room", func() bool {
		fill()
		return strings.Contains(s.node.log.String(), "the spool takes no windows")
	})
	if err := s.node.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the agent ends", func() bool {
		fill() // to the end
		select {
		case <-s.node.ended:
			return true
		default:
			return false
		}
	})
	if s.node.wait(); s.node.err != nil { // it is no failure
		t.Errorf("the agent after SIGTERM: %v", s.node.err)
	}
	// The last window may have found the room of what the spool gave up before it.
	log := s.node.log.String()
	full := strings.LastIndex(log, "the spool takes no windows") > strings.LastIndex(log, "the spool takes windows again")
	if full && !strings.Contains(log, `level=WARN msg="the last windows are not on the disk`) {
		t.Errorf("it does not say what it could not keep:\n%s", log)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	s.measure("-reader", "files", "-spool-cap", "1500000")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.books(append(reports, s.report(across))...)
	s.node.stop()
	s.server.stop()
}

// An agent whose node is revoked says so, once, and goes on measuring: what it
// measures waits until a person decides. Enrolled again it is another node, and
// what the one before could not send is said to be there.
func TestRevoked(t *testing.T) {
	hosttest.Need(t, "procfs")
	t.Parallel()
	s := newSite(t)
	s.serve()
	s.measure()
	node := s.node.says(`msg=measuring node=(\S+)`)[1]
	s.node.says("server reached")
	if out := s.run("nodes", "revoke", node); !strings.HasPrefix(out, "revoked "+node+" (") {
		t.Errorf("mete nodes revoke says %q", out)
	}
	s.node.says(`level=ERROR msg="server denies this machine; what is measured waits in the spool".*node ` + node + ` is revoked.*hint=".*remove its identity`)
	s.kept()
	if n := strings.Count(s.node.log.String(), "server denies"); n != 1 {
		t.Errorf("it is said %d times:\n%s", n, &s.node.log)
	}
	s.node.stop()
	// The next one starts all the same.
	s.measure()
	s.node.says("server denies this machine")
	s.node.stop()
	if err := os.RemoveAll(filepath.Join(s.dir, "agent", "identity")); err != nil {
		t.Fatal(err)
	}
	s.measure()
	s.node.says(`level=WARN msg="what this machine measured as another node is not sent; it is kept for 30 days" node=` + node)
	if again := s.node.says(`msg=measuring node=(\S+)`)[1]; again == node {
		t.Errorf("it is node %s again", node)
	}
	s.node.says("server reached")
	s.node.stop()
	s.server.stop()
}

// An agent whose certificate has ended says what to do, measures on, and with a
// token is the same node again, which sends what waited.
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
	node := s.node.says(`msg=measuring node=(\S+)`)[1]
	s.node.says("server reached")
	s.node.says(`level=ERROR msg="server denies this machine; what is measured waits in the spool".*certificate of node ` + node + ` is good from .*hint="enroll the machine with a new token`)
	s.node.stop()

	// As after a long sleep, and the token is gone.
	s.node = s.start("agent", s.agent())
	s.node.says(`level=ERROR msg="cannot renew this machine's identity; what is measured waits in the spool" node=` + node + `.*ended on .*no token.*hint="on the server's machine: mete token create`)
	s.node.says("msg=measuring node=" + node)
	s.kept()
	waited := time.Now()
	s.node.stop()

	s.measure()
	s.node.says("msg=measuring node=" + node)
	s.node.says("server reached")
	s.node.await("what waited, booked", func() bool {
		nodes, err := srv.Ledger.Nodes(ctx, query.Scope{All: true})
		if err != nil || len(nodes) != 1 {
			t.Fatalf("nodes %+v, %v; want one", nodes, err)
		}
		return nodes[0].Through.After(waited)
	})
	s.node.stop()
}
