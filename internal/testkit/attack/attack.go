// Package attack runs the real programs and attacks them, as those who have access to some part
// of them: another user of the machine, the bearer of a token, a page in a browser, an enrolled
// machine, a server below. docs/security.md says what each of them can do.
//
// The package has what the attackers need; the attacks are its tests.
package attack

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// Programs are the built programs.
type Programs struct {
	once sync.Once
	dir  string
	err  error
}

// Dir builds mete, mete-server and mete-agent once and returns their directory, in which every
// user of the machine can execute them.
func (p *Programs) Dir(t testing.TB) string {
	t.Helper()
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", "mete-attack-"); p.err != nil {
			return
		}
		if p.err = os.Chmod(p.dir, 0o755); p.err != nil {
			return
		}
		cmd := exec.Command("go", "build", "-o", p.dir+"/", "mete.dev/mete/cmd/mete", "mete.dev/mete/cmd/mete-server", "mete.dev/mete/cmd/mete-agent")
		if out, err := cmd.CombinedOutput(); err != nil {
			p.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if p.err != nil {
		t.Fatal(p.err)
	}
	return p.dir
}

// Remove removes the programs.
func (p *Programs) Remove() {
	if p.dir != "" {
		_ = os.RemoveAll(p.dir) // a temporary directory
	}
}

// A Process is a running program.
type Process struct {
	Cmd      *exec.Cmd
	Out, Log syncbuf.Buffer // standard output, and standard error
	done     chan struct{}
	err      error
}

// Config says how a process runs.
type Config struct {
	Env []string
	UID uint32 // 0 is the user of the test
	// Memory limits the process by a control group of its own, in bytes; 0 does not. It needs
	// root.
	Memory int64
	Files  int // limits the descriptors; 0 does not
}

// Start starts a program, which is killed when the test ends.
func Start(t testing.TB, cfg Config, program string, args ...string) *Process {
	t.Helper()
	if cfg.Memory > 0 {
		group := memoryGroup(t, cfg.Memory)
		args = append([]string{"-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(group, "cgroup.procs"), program}, args...)
		program = "/bin/sh"
	}
	if cfg.Files > 0 {
		args = append([]string{"-c", `ulimit -n "$0" && exec "$@"`, strconv.Itoa(cfg.Files), program}, args...)
		program = "/bin/sh"
	}
	p := &Process{Cmd: exec.Command(program, args...), done: make(chan struct{})}
	p.Cmd.Env = append(os.Environ(), cfg.Env...)
	p.Cmd.Dir = "/"
	p.Cmd.Stdout, p.Cmd.Stderr = &p.Out, &p.Log
	if cfg.UID != 0 {
		p.Cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: cfg.UID, Gid: cfg.UID}}
	}
	if err := p.Cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.Cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.Cmd.Process.Kill() // it may have ended
		<-p.done
	})
	return p
}

// Wait waits until the process ends by itself.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop ends the process in an orderly way.
func (p *Process) Stop() error {
	_ = p.Cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-p.done
	return p.err
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Await waits until the process prints text, on either output.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	testkit.Eventually(t, filepath.Base(p.Cmd.Path)+" prints "+text, func() bool {
		if strings.Contains(p.Out.String(), text) || strings.Contains(p.Log.String(), text) {
			return true
		}
		if p.Ended() {
			t.Fatalf("%v ended: %v\n%s%s", p.Cmd.Args, p.err, p.Out.String(), p.Log.String())
		}
		return false
	})
}

// PeakRSS returns the largest resident set of the process since its start or [Process.ResetPeak],
// in bytes, or 0 if it has ended.
func (p *Process) PeakRSS() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), "VmHWM:")
	line, _, _ := strings.Cut(rest, "\n")
	kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(line), "kB")), 10, 64)
	return kib << 10
}

// ResetPeak makes PeakRSS begin again.
func (p *Process) ResetPeak(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.Cmd.Process.Pid), []byte("5"), 0o600); err != nil && !p.Ended() {
		t.Fatal(err)
	}
}

// memoryGroup returns the directory of a new control group with a limit of memory and no swap.
func memoryGroup(t testing.TB, limit int64) string {
	t.Helper()
	hosttest.Need(t, "root")
	base, files := "/sys/fs/cgroup/memory", []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	if _, err := os.Stat(base); err != nil {
		hosttest.Need(t, "memcg2")
		base, files = "/sys/fs/cgroup", []string{"memory.max", "memory.swap.max"}
	} else {
		hosttest.Need(t, "memcg1")
	}
	dir, err := os.MkdirTemp(base, "mete-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Eventually(t, "the control group is empty", func() bool { return os.Remove(dir) == nil })
	})
	if err := os.WriteFile(filepath.Join(dir, files[0]), []byte(strconv.FormatInt(limit, 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.WriteFile(filepath.Join(dir, files[1]), []byte("0"), 0o600) // a kernel without accounting of swap has no such file
	return dir
}

// A Server is a running mete server.
type Server struct {
	*Process
	URL, State string
	bin        string
	http       *http.Client
}

// StartServer starts mete server with a state directory of its own.
func StartServer(t testing.TB, p *Programs, cfg Config, args ...string) *Server {
	t.Helper()
	s := &Server{bin: p.Dir(t)}
	s.State = ShortDir(t)
	args = append([]string{"server", "--listen", "127.0.0.1:0", "--state", s.State}, args...)
	cfg.Env = append(cfg.Env, "METE_STATE="+s.State)
	s.Process = Start(t, cfg, filepath.Join(s.bin, "mete"), args...)
	s.Await(t, "ledger:")
	_, rest, _ := strings.Cut(s.Out.String(), "mete server: ")
	s.URL, _, _ = strings.Cut(rest, "\n")
	s.http = NewClient(t)
	return s
}

// ShortDir returns a new directory whose path is short enough for sockets in it.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a temporary directory
	return dir
}

// NewClient returns an HTTP client that believes every server. Its connections end with the test.
func NewClient(t testing.TB) *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Mete runs a command of mete as the server's user and returns its standard output.
func (s *Server) Mete(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(s.bin, "mete"), args...)
	cmd.Env = append(os.Environ(), "METE_STATE="+s.State)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("mete %s: %v\n%s", strings.Join(args, " "), err, log.String())
	}
	return strings.TrimSpace(string(out))
}

// Token makes a token at the server.
func (s *Server) Token(t testing.TB, role string, args ...string) string {
	t.Helper()
	return s.Mete(t, append([]string{"token", "create", "--state", s.State, "--role", role}, args...)...)
}

// An Answer is the answer to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   string
	Took   time.Duration
}

// Do sends a request with headers, in pairs. An answer with status 0 is none: the server closed
// the connection.
func (s *Server) Do(t testing.TB, method, path string, body io.Reader, headers ...string) Answer {
	t.Helper()
	return Do(t, s.http, method, s.URL+path, body, headers...)
}

// Do sends a request; see [Server.Do].
func Do(t testing.TB, c *http.Client, method, url string, body io.Reader, headers ...string) Answer {
	t.Helper()
	began := time.Now()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		return Answer{Body: err.Error(), Took: time.Since(began)}
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close() // it was read
	if err != nil {
		b = append(b, err.Error()...)
	}
	return Answer{resp.StatusCode, resp.Header, string(b), time.Since(began)}
}

// Bearer returns the header of a token.
func Bearer(token string) []string { return []string{"Authorization", "Bearer " + token} }

// Check fails the test unless the server lives, answers, and has never had more than memory bytes
// resident.
func (s *Server) Check(t testing.TB, memory int64) {
	t.Helper()
	if s.Ended() {
		t.Fatalf("the server has ended: %v\n%s", s.err, tail(s.Log.String()))
	}
	if a := s.Do(t, http.MethodGet, "/healthz", nil); a.Status != http.StatusOK {
		t.Errorf("/healthz: %d %s", a.Status, a.Body)
	}
	if peak := s.PeakRSS(); peak > memory {
		t.Errorf("the server took %d MiB, want at most %d", peak>>20, memory>>20)
	}
	if strings.Contains(s.Log.String(), "panic") {
		t.Errorf("the server panicked:\n%s", tail(s.Log.String()))
	}
}

// CheckSecrets fails the test if an output of a process has one of the secrets.
func (p *Process) CheckSecrets(t testing.TB, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		if strings.Contains(p.Log.String()+p.Out.String(), s) {
			t.Errorf("%v prints the secret %.8s...", p.Cmd.Args[:2], s)
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-4000):] }
