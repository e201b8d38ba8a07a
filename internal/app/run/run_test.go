package run_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// TestPass checks that the command keeps its input, output and exit code.
func TestPass(t *testing.T) {
	m := program(t)
	c := m.command("run", "-q", "--", "sh", "-c", "tr a-z A-Z; echo oops >&2; exit 5")
	c.Stdin = strings.NewReader("hello\n")
	if r := finish(t, c); r.stdout != "HELLO\n" || r.stderr != "oops\n" || r.code != 5 {
		t.Errorf("%+v, want HELLO, oops, 5", r)
	}
	// In a pipeline whose reader ends first.
	r := finish(t, sh(m, `"$0" run -q -- yes | head -1; "$0" run -- seq 3 2>/dev/null | "$0" run -q -- wc -l`))
	if r.stdout != "y\n3\n" || r.code != 0 {
		t.Errorf("pipeline: %+v", r)
	}
}

func sh(m *mete, script string) *exec.Cmd {
	c := m.command()
	c.Args = []string{"sh", "-c", script, os.Args[0]}
	c.Path = "/bin/sh"
	return c
}

func TestExitCodes(t *testing.T) {
	m := program(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"run", "--", "true"}, 0, "true: exit 0\n"},
		{[]string{"run", "true"}, 0, "true: exit 0\n"},
		{[]string{"run", "--", "sh", "-c", "exit 3"}, 3, "sh: exit 3\n"},
		{[]string{"run", "--", "sh", "-c", "kill -KILL $$"}, 137, "sh: ended by SIGKILL (exit 137)\n"},
		{[]string{"run", "--", "no-such-command"}, 127, "mete: error: no-such-command: command not found\n"},
		{[]string{"run", "--", "./no/such"}, 127, "mete: error: ./no/such: no such file or directory\n"},
		{[]string{"run", "--", "/etc/passwd"}, 126, "mete: error: /etc/passwd: permission denied\n"},
		{[]string{"run", "--", "/"}, 126, "mete: error: /: is a directory\n"},
		{[]string{"run"}, 125, "mete: error: no command given\nhint: "},
		{[]string{"run", "--nonsense", "--", "true"}, 125, "mete: error: unknown flag: --nonsense\nhint: "},
		{[]string{"run", "--reader", "magic", "--", "true"}, 125, "mete: error: --reader \"magic\": invalid\nhint: "},
		{[]string{"run", "-o", "xml", "--", "true"}, 125, "mete: error: -o \"xml\": invalid\nhint: "},
		{[]string{"run", "--cpus", "0", "--", "true"}, 125, "mete: error: --cpus \"0\": invalid\nhint: "},
		{[]string{"run", "--cpus", "1x", "--", "true"}, 125, "mete: error: --cpus \"1x\": invalid\nhint: "},
		{[]string{"run", "--memory", "much", "--", "true"}, 125, "mete: error: --memory \"much\": invalid\nhint: "},
		{[]string{"run", "--label", "x", "--", "true"}, 125, "mete: error: --label \"x\": invalid\nhint: "},
		{[]string{"run", "--label", "x=1", "--label", "x=2", "--", "true"}, 125, "mete: error: --label \"x\": given twice"},
		{[]string{"run", "--name", "a\nb", "--", "true"}, 125, "mete: error: --name \"a\\nb\": not plain text"},
		{[]string{"run", "--json", "/no/such/dir/x", "--", "true"}, 125, "mete: error: --json: "},
		{[]string{"run", "--json", "/", "--", "true"}, 125, "mete: error: --json /: is a directory"},
		{[]string{"report", "zzzzzzz"}, 1, "mete: error: job \"zzzzzzz\": not found\nhint: mete report --list"},
		{[]string{"report", "--last", "--list"}, 1, "mete: error: JOB, --last and --list: only one"},
		{[]string{"report", "-o", "xml"}, 1, "mete: error: -o \"xml\": invalid"},
	} {
		r := m.run(c.args...)
		if r.code != c.code || !strings.HasPrefix(r.stderr, c.says) || r.stdout != "" {
			t.Errorf("%q: exit %d, want %d, says %q", c.args, r.code, c.code, r.stderr)
		}
	}
	leftovers(t, m.jobs()...)
}

// leftovers fails the test if a group of these jobs is left.
func leftovers(t *testing.T, ids ...string) {
	t.Helper()
	if len(ids) == 0 {
		t.Error("no job to look for")
	}
	for _, id := range ids {
		for _, d := range remainingGroups(t, id) {
			t.Errorf("left: %s", d)
		}
	}
}

// remainingGroups lists the remaining groups of a job.
func remainingGroups(t *testing.T, id string) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup/mete-run-", "/sys/fs/cgroup/*/mete-run-"} {
		found, err := filepath.Glob(pattern + id)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, found...)
	}
	return dirs
}

// jobs lists the jobs with stored reports.
func (m *mete) jobs() (ids []string) {
	m.t.Helper()
	es, err := os.ReadDir(filepath.Join(m.dir, "jobs"))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, e := range es {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func TestOutput(t *testing.T) {
	m := program(t)
	r := m.run("run", "-o", "json", "--name", "night", "--label", "a=b=c", "--json", "-", "--", "echo", "hi")
	if !strings.HasPrefix(r.stdout, "hi\n{") || strings.TrimPrefix(r.stdout, "hi\n") != r.stderr {
		t.Fatalf("stdout %s\nstderr %s", r.stdout, r.stderr)
	}
	rep, err := report.Parse([]byte(r.stderr))
	if err != nil || rep.Name != "night" || rep.Labels["a"] != "b=c" {
		t.Fatalf("%v, %+v", err, rep)
	}
	for _, args := range [][]string{{"report"}, {"report", "--last"}, {"report", rep.ID}, {"report", rep.ID[16:]}} {
		if got := m.run(append(args, "-o", "json")...); got.stdout != r.stderr {
			t.Errorf("%v: %+v, want %s", args, got, r.stderr)
		}
	}
	if r := m.run("report"); !strings.HasPrefix(r.stdout, "night: exit 0\n  echo hi\n") {
		t.Errorf("report: %+v", r)
	}
	if r := m.run("report", "--list", "-o", "csv"); strings.Count(r.stdout, "\n") != 2 {
		t.Errorf("list: %+v", r)
	}
	if r := m.run("report", "--list"); !strings.Contains(r.stdout, rep.ID) || r.code != 0 {
		t.Errorf("list: %+v", r)
	}
	// A damaged report does not hide the others.
	if err := os.WriteFile(filepath.Join(m.dir, "jobs", strings.Repeat("0", 26)+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := m.run("report", "--list"); !strings.Contains(r.stdout, rep.ID) || !strings.Contains(r.stderr, "invalid report") || r.code != 0 {
		t.Errorf("list with a damaged report: %+v", r)
	}
	if r := m.run("report", strings.Repeat("0", 26)); r.code != 1 || !strings.Contains(r.stderr, "hint: the file is damaged") {
		t.Errorf("damaged report: %+v", r)
	}
}

// TestUnwritable checks that a report that cannot be stored or written is reported and changes no
// exit code.
func TestUnwritable(t *testing.T) {
	m := program(t)
	m.env = append(m.env, "METE_STATE=/dev/null/state")
	r := m.run("run", "-q", "--", "sh", "-c", "exit 9")
	if r.code != 9 || strings.Count(r.stderr, "\n") != 1 || !strings.HasPrefix(r.stderr, "mete: cannot store the report: ") {
		t.Errorf("%+v", r)
	}
	m = program(t)
	r = m.run("run", "-q", "--json", "/dev/full", "--", "sh", "-c", "exit 9")
	if r.code != 9 || !strings.HasPrefix(r.stderr, "mete: cannot write the report: ") {
		t.Errorf("full disk: %+v", r)
	}
	// Standard error is gone before the report is printed.
	if r := finish(t, sh(m, `{ "$0" run -- sh -c 'exit 9'; echo $? >&3; } 3>&1 2>&1 >/dev/null | true; sleep 0.2`)); strings.TrimSpace(r.stdout) != "9" && r.stdout != "" {
		t.Errorf("closed pipe: %+v", r)
	}
}

// TestJSONLink checks that --json keeps a symbolic link, and writes to a file that is already open as
// standard output or standard error.
func TestJSONLink(t *testing.T) {
	m := program(t)
	dir := t.TempDir()
	read := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	// One link points to a file in another directory, one to a file that does not exist yet.
	if err := os.Mkdir(filepath.Join(dir, "there"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "there", "old"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"old", "new"} {
		link := filepath.Join(dir, name)
		if err := os.Symlink(filepath.Join("there", name), link); err != nil {
			t.Fatal(err)
		}
		r := m.run("run", "-q", "--json", link, "--", "true")
		if st, err := os.Lstat(link); err != nil || st.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s is not a link: %v, %+v", name, err, r)
		}
		if _, err := report.Parse([]byte(read("there/" + name))); err != nil {
			t.Errorf("%s: %v: %+v", name, err, r)
		}
	}
	for _, name := range []string{"stdout", "stderr"} {
		// The link is as /dev/stdout, which a broken mete would replace.
		link := filepath.Join(dir, name)
		if err := os.Symlink("/proc/self/fd/"+map[string]string{"stdout": "1", "stderr": "2"}[name], link); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		c := m.command("run", "-q", "--json", link, "--", "sh", "-c", "echo before; echo before >&2")
		if name == "stdout" {
			c.Stdout = f
		} else {
			c.Stderr = f
		}
		if err := errors.Join(c.Run(), f.Close()); err != nil {
			t.Error(err)
		}
		after, ok := strings.CutPrefix(read("out"), "before\n")
		if _, err := report.Parse([]byte(after)); !ok || err != nil {
			t.Errorf("%s: %v: %q", name, err, after)
		}
		if st, err := os.Lstat(link); err != nil || st.Mode().Type() != os.ModeSymlink {
			t.Errorf("%s is not a link: %v", name, err)
		}
	}
}

// TestSignal checks that the command gets signals sent to mete, and that the report is complete.
func TestSignal(t *testing.T) {
	// A caught signal is at its default in a child. Otherwise one that this process ignores, as
	// SIGHUP below nohup, is ignored there too.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(caught)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1, syscall.Signal(40)} {
		m := program(t)
		c := m.command("run", "--", "sh", "-c", "echo ready; exec sleep 1000000")
		// In its own session there is no terminal to send the signal too.
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		errs := &strings.Builder{}
		c.Stderr = errs
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		if err := c.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // the exit code is checked below
		if code := c.ProcessState.ExitCode(); code != 128+int(s) || !strings.Contains(errs.String(), "ended by ") {
			t.Errorf("%v: exit %d: %s", s, code, errs)
		}
		leftovers(t, m.jobs()...)
	}
}

// terminal opens a pair of pseudoterminals.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	hosttest.Need(t, "pty")
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	master = os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	return master, slave
}

// TestSignalTerminal checks which signals the command gets from mete in the foreground of a terminal, which
// sends its own to both.
func TestSignalTerminal(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1) // as in TestSignal
	defer signal.Stop(caught)
	for first, want := range map[syscall.Signal]syscall.Signal{syscall.SIGHUP: syscall.SIGHUP, syscall.SIGINT: syscall.SIGTERM} {
		_, slave := terminal(t)
		m := program(t)
		c := m.command("run", "-q", "--", "sh", "-c", `trap "echo passed" USR1; echo ready; while :; do sleep 0.01; done`)
		c.Stdin, c.SysProcAttr = slave, &syscall.SysProcAttr{Setsid: true, Setctty: true}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{"ready\n", "passed\n"} {
			if _, err := io.ReadFull(out, make([]byte, len(line))); err != nil {
				t.Fatal(err)
			}
			if line == "ready\n" {
				// All signals that come during the start are passed. The start is over when one was.
				if err := c.Process.Signal(syscall.SIGUSR1); err != nil {
					t.Fatal(err)
				}
			}
		}
		err = c.Process.Signal(first)
		if first != want { // ends the command, which does not get the first
			err = errors.Join(err, c.Process.Signal(want))
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Wait() // the exit code is checked below
		if code := c.ProcessState.ExitCode(); code != 128+int(want) {
			t.Errorf("%v of kill: exit %d, want %d", first, code, 128+want)
		}
	}
}

// TestIgnored checks that ignored signals stay ignored for the command.
func TestIgnored(t *testing.T) {
	r := finish(t, sh(program(t), `trap "" HUP INT; exec "$0" run -q -- sh -c 'grep SigIgn /proc/$$/status'`))
	if !strings.HasSuffix(strings.TrimSpace(r.stdout), "7") {
		t.Errorf("%q, want the last digit 7: HUP, INT and with it QUIT", r.stdout)
	}
}

// TestKilled checks that the job continues if mete dies.
func TestKilled(t *testing.T) {
	hosttest.Need(t, "root")
	m := program(t)
	file := filepath.Join(t.TempDir(), "file")
	c := m.command("run", "-q", "--", "sh", "-c", `mkfifo "$1.go"; echo $$; read x <"$1.go"; cat /proc/self/cgroup > "$1.new"; mv "$1.new" "$1"`, "sh", file)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // killed
	if err := os.WriteFile(file+".go", []byte("go on\n"), 0); err != nil {
		t.Fatal(err)
	}
	var groups []byte
	testkit.Eventually(t, "the job ends its work", func() bool {
		groups, _ = os.ReadFile(file)
		return len(groups) > 0
	})
	id := regexp.MustCompile(`/mete-run-([0-9a-z]{26})\b`).FindSubmatch(groups)
	if id == nil {
		t.Fatalf("the job was in no group of its own:\n%s", groups)
	}
	// The remaining groups have no owner; a later job removes them.
	testkit.Eventually(t, "the groups are gone", func() bool {
		m.run("run", "-q", "--", "true")
		return len(remainingGroups(t, string(id[1]))) == 0
	})
}

func TestWaitAll(t *testing.T) {
	hosttest.Need(t, "root")
	m := program(t)
	// Remaining processes live until killed.
	rep, r := m.job("--", "sh", "-c", "(setsid sleep 1000000 >/dev/null 2>&1 &)")
	if len(rep.LivesOn) != 1 {
		t.Fatalf("lives on: %v, want one", rep.LivesOn)
	}
	if want := fmt.Sprintf("mete: sh: still running: 1 process (%s (%d)): use from now on is not in this report\n", rep.LivesOn[0].Name, rep.LivesOn[0].PID); r.stderr != want {
		t.Errorf("with --quiet: %q, want %q", r.stderr, want)
	}
	first, lives := rep.ID, int(rep.LivesOn[0].PID)
	t.Cleanup(func() {
		// The groups stay for the remaining processes.
		if err := syscall.Kill(lives, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		dirs, err := filepath.Glob("/sys/fs/cgroup/*/mete-run-" + first)
		if err != nil {
			t.Error(err)
		}
		for _, d := range dirs {
			var err error
			testkit.Eventually(t, "the group is empty", func() bool { err = os.Remove(d); return !errors.Is(err, syscall.EBUSY) })
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // another job may have removed it
				t.Error(err)
			}
		}
	})
	rep, r = m.job("--wait-all", "--", "sh", "-c", "(setsid sleep 0.5 &)")
	if r.stderr != "" {
		t.Errorf("--wait-all --quiet: %q", r.stderr)
	}
	if wall, _ := rep.Get(report.Wall); len(rep.LivesOn) != 0 || wall < 500e6 {
		t.Errorf("--wait-all: %v live on after %d ns", rep.LivesOn, wall)
	}
}

func TestLimits(t *testing.T) {
	hosttest.Need(t, "memcg1")
	m := program(t)
	rep, r := m.job("--memory", "32Mi", "--", "sh", "-c", "head -c 100M /dev/zero | tail | wc -c")
	if n, _ := rep.Get(report.OOMKills); n == 0 {
		t.Errorf("no OOM kill within 32 MiB: %+v", r)
	}
	for _, few := range []string{"1", "1K", "20Ki"} {
		got := m.run("run", "--memory", few, "--", "true")
		if got.code != 125 || !strings.HasPrefix(got.stderr, "mete: error: limit of memory: ") || !strings.Contains(got.stderr, " too few to start ") || !strings.Contains(got.stderr, "\nhint: ") {
			t.Errorf("--memory %s: %+v", few, got)
		}
	}
}

// TestOrdinaryUser checks that an unprivileged user gets the process tree, marked as such.
func TestOrdinaryUser(t *testing.T) {
	hosttest.Need(t, "root")
	m := program(t)
	if err := os.Chmod(m.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for d := m.dir; d != "/"; d = filepath.Dir(d) {
		if st, err := os.Stat(d); err == nil && st.Mode()&1 == 0 {
			if err := os.Chmod(d, st.Mode()|0o11); err != nil {
				t.Fatal(err)
			}
		}
	}
	self := copyTo(t, os.Args[0], filepath.Join(m.dir, "mete"))
	c := m.command(append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", self, "run", "-o", "json", "--json", "-", "-q", "--"},
		"sh", "-c", "i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; sleep 1; exit 4")...)
	setpriv := hosttest.Program(t, "setpriv")
	c.Path, c.Dir = setpriv, "/"
	r := finish(t, c)
	rep, err := report.Parse([]byte(r.stdout))
	if err != nil || r.code != 4 {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, k := range []report.Key{report.CPU, report.MemoryAverage} {
		if q := rep.Figures[k].Quality; q != usage.Apportioned {
			t.Errorf("%s is %s, want apportioned", k, q)
		}
	}
	for _, k := range []report.Key{report.NetworkRx, report.Processes} {
		if q := rep.Figures[k].Quality; q != usage.Absent {
			t.Errorf("%s is %s, want absent", k, q)
		}
	}
	if rep.Reader != "tree" || rep.InLedgerByName != nil || !slices.ContainsFunc(rep.Notes, func(n string) bool {
		return strings.HasPrefix(n, "no control group for the job (") && strings.HasSuffix(n, "apportioned; run mete as root, or in a control group delegated to you for exact ones")
	}) {
		t.Errorf("reader %s, in the ledger by name %v, notes %q", rep.Reader, rep.InLedgerByName, rep.Notes)
	}
	// An agent, which knows jobs by their groups, does not have the job's name.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(m.dir, "none")})
	if err != nil {
		t.Fatal(err)
	}
	c = m.command("--reuid=65534", "--regid=65534", "--clear-groups", self, "run", "--", "true")
	c.Path, c.Dir = setpriv, "/"
	r = finish(t, c)
	if want := "knows a job by its control group: run mete as root, or in a control group delegated to you for its name to be in the ledger\n"; r.code != 0 || !strings.Contains(r.stderr, report.NotInLedger) || !strings.Contains(r.stderr, want) {
		t.Errorf("exit %d, %s\nwant %q", r.code, r.stderr, want)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// The memory of a job that ended before the first reading is unknown.
	c = m.command("--reuid=65534", "--regid=65534", "--clear-groups", self, "run", "-o", "json", "--", "true")
	c.Path, c.Dir = setpriv, "/"
	r = finish(t, c)
	if rep, err = report.Parse([]byte(r.stderr)); err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	for _, k := range []report.Key{report.MemoryAverage, report.MemoryPeak, report.AnonPeak} {
		if v, ok := rep.Get(k); ok && (v == 0 || rep.Figures[k].Quality != usage.Apportioned) {
			t.Errorf("%s of a short job is %d, %s", k, v, rep.Figures[k].Quality)
		}
	}
	c = m.command("--reuid=65534", "--regid=65534", "--clear-groups", self, "run", "--memory", "1G", "--", "true")
	c.Path, c.Dir = setpriv, "/"
	if r := finish(t, c); r.code != 125 || !strings.Contains(r.stderr, "limits need a control group") {
		t.Errorf("a limit of an unprivileged user: %+v", r)
	}
}

// TestNoBPF checks that a denied BPF is reported in one line.
func TestNoBPF(t *testing.T) {
	hosttest.Need(t, "root", "bpf")
	setpriv := hosttest.Program(t, "setpriv")
	m := program(t)
	without := func(args ...string) result {
		drop := "-bpf,-perfmon,-sys_admin"
		c := m.command(append([]string{"--bounding-set=" + drop, "--inh-caps=" + drop, os.Args[0], "run"}, args...)...)
		c.Path = setpriv
		return finish(t, c)
	}
	const refused = "BPF is not permitted: run as root or with CAP_BPF and CAP_PERFMON"
	r := without("-o", "json", "--", "true")
	rep, err := report.Parse([]byte(r.stderr))
	if err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if n := len(rep.Notes); n == 0 || !strings.HasSuffix(rep.Notes[n-1], " absent: "+refused) {
		t.Errorf("notes %q, want the last to end in %q", rep.Notes, refused)
	}
	for _, n := range rep.Notes {
		if strings.Contains(n, "\n") {
			t.Errorf("a note of several lines: %q", n)
		}
	}
	if r := without("--reader", "bpf", "--", "true"); r.code != 125 || !strings.HasPrefix(r.stderr, "mete: error: --reader bpf: "+refused+"\nhint: ") {
		t.Errorf("--reader bpf: %+v", r)
	}
}

// TestNoCounter checks that processes and disk are absent, not 0, if the job has no group for which BPF
// counts them.
func TestNoCounter(t *testing.T) {
	hosttest.Need(t, "root", "bpf", "cgroup1", "cgroup2")
	unshare := hosttest.Program(t, "unshare")
	m := program(t)
	for what, x := range map[string]struct {
		mounts string
		key    report.Key
		want   string
	}{
		"processes": {`$3 == "cgroup2"`, report.Processes, "processes: absent: no cgroup2 group: "},
		"disk":      {`$3 == "cgroup" && $4 ~ /blkio/`, report.DiskRead, "disk: absent: no group with the controller io or blkio: "},
	} {
		c := m.command("-m", "sh", "-c", `umount $(awk "$1 { print \$2 }" /proc/mounts) && exec "$0" run -o json --reader bpf -- true`, os.Args[0], x.mounts)
		c.Path = unshare
		r := finish(t, c)
		rep, err := report.Parse([]byte(r.stderr))
		if err != nil {
			t.Errorf("%s: %v: %+v", what, err, r)
			continue
		}
		if v, ok := rep.Get(x.key); ok || !strings.Contains(strings.Join(rep.Notes, "\n"), x.want) {
			t.Errorf("%s: %d, %v, notes %q, want it absent and %q", what, v, ok, rep.Notes, x.want)
		}
	}
}

// TestUnkeptDocument checks that the note about an unstored report is part of the document.
func TestUnkeptDocument(t *testing.T) {
	m := program(t)
	m.env = append(m.env, "METE_STATE=/dev/null/state")
	r := m.run("run", "-o", "json", "--", "true")
	rep, err := report.Parse([]byte(r.stderr))
	if err != nil || !strings.HasPrefix(rep.Notes[len(rep.Notes)-1], "cannot store the report: ") {
		t.Errorf("%v: %+v", err, r)
	}
}

func copyTo(t *testing.T, from, to string) string {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestNoGroups checks read-only control groups, as in most containers, and a missing /sys.
func TestNoGroups(t *testing.T) {
	hosttest.Need(t, "root")
	m := program(t)
	for name, script := range map[string]string{
		"read-only": `mount -t tmpfs none /mnt; for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mountpoint -q $d && mount -o remount,bind,ro $d; done`,
		"hidden":    `mount -t tmpfs none /sys`,
	} {
		c := m.command("-m", "sh", "-c", script+`; "$0" run -o csv -- true 2>&1 | wc -l; exec "$0" run -o json -- sh -c 'exit 6'`, os.Args[0])
		unshare := hosttest.Program(t, "unshare")
		c.Path = unshare
		r := finish(t, c)
		if r.code != 6 || r.stdout != "2\n" {
			t.Errorf("%s: %+v, want exit 6 and two lines of CSV", name, r)
		}
		// The output is only the document, with the note.
		rep, err := report.Parse([]byte(r.stderr))
		if err != nil {
			t.Errorf("%s: %v: %+v", name, err, r)
			continue
		}
		if rep.Reader != "tree" || len(rep.Notes) == 0 || !strings.HasPrefix(rep.Notes[0], "no control group for the job (") {
			t.Errorf("%s: reader %s, notes %q", name, rep.Reader, rep.Notes)
		}
	}
}
