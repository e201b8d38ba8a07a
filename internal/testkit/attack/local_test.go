package attack_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mete.dev/mete/internal/pki/enroll"
	"mete.dev/mete/internal/pki/token"
	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/attack"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/otheruser"
)

// localAttempts are those of another user of the machine, on a server without TLS.
var localAttempts = []attempt{
	{"local user", "requests", func(t *testing.T, s *scene) {
		tcp, socket := strings.TrimPrefix(s.URL, "http://"), filepath.Join(s.State, "admin.sock")
		// Whatever the modes of the files let in, the kernel names the other end.
		for _, path := range []string{s.State, socket} {
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}
		claim := `{"machine_id":"victim-machine-id","boot":"victim-boot-id","name":"payroll-host"}`
		for _, c := range []struct {
			network, address, method, path, body, header string
			want                                         []int
		}{
			{"tcp", tcp, "GET", "/v1/nodes", "", "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "GET", "/v1/usage", "", "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "GET", "/metrics", "", "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "GET", "/api/v1/query?query=up", "", "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "GET", "/v1/tokens", "", "X-None: 1", []int{401, 403, 404}},
			{"tcp", tcp, "POST", "/v1/backup", "", "X-None: 1", []int{401, 403, 404, 405}},
			{"tcp", tcp, "POST", "/v1/enroll", claim, "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "POST", "/v1/batches", "x", token.NodeHeader + ": " + s.victim.ID, []int{401, 403}},
			{"tcp", tcp, "POST", "/v1/lost", "{}", token.NodeHeader + ": " + s.victim.ID, []int{401, 403}},
			{"tcp", tcp, "POST", "/v1/page-token", `{"code":"guess"}`, "X-None: 1", []int{401, 403}},
			{"tcp", tcp, "GET", "/v1/nodes", "", "Authorization: Bearer " + s.viewer[:30], []int{401, 403}},
			// The bearer of a token reads, but not through a proxy or for a page of another site.
			{"tcp", tcp, "GET", "/v1/nodes", "", "Authorization: Bearer " + s.admin + "\r\nX-Forwarded-For: 10.0.0.1", []int{401, 403}},
			{"tcp", tcp, "GET", "/v1/nodes", "", "Authorization: Bearer " + s.admin + "\r\nOrigin: http://localhost:1", []int{401, 403}},
			{"unix", socket, "GET", "/v1/nodes", "", "X-None: 1", []int{0}},
			{"unix", socket, "POST", "/v1/tokens", `{"role":"viewer"}`, "X-None: 1", []int{0}},
			{"unix", socket, "POST", "/v1/page-links", "", "X-None: 1", []int{0}},
			{"unix", socket, "POST", "/v1/silences", "{}", "X-None: 1", []int{0}},
		} {
			status, body := attack.CallAsOther(t, attack.Call{Network: c.network, Address: c.address, Method: c.method, Path: c.path, Headers: strings.Split(c.header, "\r\n"), Body: c.body})
			if !is(status, c.want...) {
				t.Errorf("%s %s %s with %.20s: %d %.200s, want one of %v", c.network, c.method, c.path, c.header, status, body, c.want)
			}
			s.hidden(t, c.path, body)
		}
	}},
	{"local user", "mete's own commands", func(t *testing.T, s *scene) {
		dir, err := os.MkdirTemp("", "mete-attack-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		stolen := filepath.Join(dir, "stolen")
		for _, args := range [][]string{{"nodes", "--server", s.URL}, {"usage", "--server", s.URL}, {"token", "list", "--state", s.State}, {"token", "create", "--state", s.State}, {"token", "link", "--state", s.State},
			{"backup", "--state", s.State, stolen}} {
			p := attack.Start(t, attack.Config{UID: hosttest.OtherUID, Env: []string{"HOME=/", "METE_STATE=" + s.State, "METE_TOKEN="}}, filepath.Join(programs.Dir(t), "mete"), args...)
			if err := p.Wait(); err == nil {
				t.Errorf("mete %v succeeds: %s", args, p.Out.String())
			}
			s.hidden(t, "mete "+strings.Join(args, " "), p.Out.String())
		}
		if _, err := os.Stat(stolen); err == nil {
			t.Error("another user has a backup")
		}
	}},
	{"local user", "a listener in place of the server", func(t *testing.T, s *scene) {
		address, received := attack.ListenAsOther(t)
		for _, args := range [][]string{{"nodes"}, {"usage"}, {"query", "up"}} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(programs.Dir(t), "mete"), append(args, "--server", "http://"+address)...)
			cmd.Env = append(os.Environ(), "METE_TOKEN="+s.admin, "METE_STATE="+s.State)
			if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), s.admin) {
				t.Errorf("mete %v asks another user's listener: %v\n%s", args, err, out)
			}
		}
		if got := received(); got != "" {
			t.Errorf("another user's listener got %q", got)
		}
	}},
	{"local user", "a program beside mete", func(t *testing.T, s *scene) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o1777); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(programs.Dir(t), "mete"))
		if err != nil {
			t.Fatal(err)
		}
		proof := filepath.Join(dir, "proof")
		evil := []byte("#!/bin/sh\nid -u > " + proof + "\n")
		if err := os.WriteFile(filepath.Join(dir, "mete"), b, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "mete-server"), evil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(dir, "mete-server"), hosttest.OtherUID, hosttest.OtherUID); err != nil {
			t.Fatal(err)
		}
		for _, command := range []string{"up", "server"} {
			if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "mete"), command, "--state", filepath.Join(dir, "state")).CombinedOutput(); err == nil {
				t.Errorf("mete %s runs another user's program: %s", command, out)
			}
		}
		if _, err := os.Stat(proof); err == nil {
			t.Error("another user's program ran as root")
		}
	}},
	{"job", "tokens in the environment", func(t *testing.T, s *scene) {
		for _, variable := range []string{"METE_TOKEN", "METE_UPSTREAM_TOKEN"} {
			cmd := exec.CommandContext(t.Context(), filepath.Join(programs.Dir(t), "mete"), "run", "--", "sh", "-c", "env; cat /proc/$$/environ")
			cmd.Env = append(os.Environ(), variable+"="+s.admin, "METE_STATE="+t.TempDir(), "METE_SOCKET="+filepath.Join(t.TempDir(), "none"))
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Contains(string(out), s.admin) {
				t.Errorf("mete run with %s: %v\n%s", variable, err, out)
			}
		}
	}},
	{"browser", "names of other hosts", func(t *testing.T, s *scene) {
		port := s.URL[strings.LastIndex(s.URL, ":")+1:]
		for _, host := range []string{"evil.example:" + port, "evil.example", "localhost.evil.example:" + port, "127.0.0.1.nip.io:" + port, "0x7f000001.evil:" + port} {
			for _, path := range []string{"/v1/nodes", "/api/v1/query?query=up", "/metrics"} {
				s.refused(t, "GET", path, "", append(attack.Bearer(s.admin), "Host", host), 400, 401, 403, 421)
				s.refused(t, "GET", path, "", []string{"Host", host}, 400, 401, 403, 421)
			}
		}
	}},
}

// TestLocalAttacks runs the attacks of another user of the machine.
func TestLocalAttacks(t *testing.T) {
	hosttest.Need(t, "root")
	attackAll(t, newScene(t, "--insecure"), localAttempts)
}

// startAgent starts the real agent of this machine, whose status has the names of workloads if args say so.
func (s *scene) startAgent(t *testing.T, args ...string) (a *attack.Process, status, socket string) {
	t.Helper()
	status, socket = freeAddress(t), filepath.Join(s.State, "agent.sock")
	a = attack.Start(t, attack.Config{Env: []string{"METE_TOKEN=" + s.agent}}, filepath.Join(programs.Dir(t), "mete-agent"), append([]string{"-server", s.URL, "-state", filepath.Join(s.State, "agent"),
		"-socket", socket, "-status", status, "-tick", "200ms", "-window", "1s"}, args...)...)
	a.Await(t, "server reached")
	return a, status, socket
}

// stopAgent stops an agent and checks what it printed.
func (s *scene) stopAgent(t *testing.T, a *attack.Process) {
	t.Helper()
	a.CheckSecrets(t, s.secrets...)
	if strings.Contains(a.Log.String(), "panic") {
		t.Errorf("the agent panicked:\n%s", a.Log.String())
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

// TestAgentUnderAttack checks the real agent of this machine: what it shows to everyone has no
// workloads, and another user cannot register jobs of others, use up its connections, or speak for a
// page of another site.
func TestAgentUnderAttack(t *testing.T) {
	attackStage(t)
	hosttest.Need(t, "root")
	s := newScene(t)
	a, status, socket := s.startAgent(t)
	code, body := attack.CallAsOther(t, attack.Call{Network: "tcp", Address: status, Method: "GET", Path: "/metrics"})
	if code != http.StatusOK || !strings.Contains(body, "mete_workload_info") {
		t.Errorf("the agent's status for another user: %d %.500s", code, body)
	}
	for line := range strings.Lines(body) {
		// The machine's totals are everyone's: what is idle, and the system's.
		if strings.HasPrefix(line, "mete_workload_info") && !strings.Contains(line, `kind="system"`) && !strings.Contains(line, `kind="idle"`) {
			t.Errorf("the agent's status shows another user a workload: %s", line)
		}
	}
	for _, body := range []string{
		`{"id":"01J00000000000000000000000","groups":["/"],"name":"stolen"}`, `{}`, `{"labels":{"io.kubernetes.pod.namespace":"kube-system"}}`, strings.Repeat("x", 100<<10), strings.Repeat(`{"labels":`, 5000), strings.Repeat("[", 60<<10),
	} {
		if code, answer := attack.CallAsOther(t, attack.Call{Network: "unix", Address: socket, Method: "POST", Path: "/v1/jobs", Body: body}); code == http.StatusOK || strings.Contains(answer, "metejob_") {
			t.Errorf("another user registers %.80s: %d %s", body, code, answer)
		}
	}
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Host", "evil.example:9798"}} {
		for _, path := range []string{"/metrics", "/healthz"} {
			if a := attack.Do(t, attack.NewClient(t), "GET", "http://"+status+path, nil, headers...); !is(a.Status, 403, 421) {
				t.Errorf("%s with %v: %d %.200s", path, headers, a.Status, a.Body)
			}
		}
	}
	// Connections that send nothing: others are served, and few stay open.
	for range 2000 {
		c, err := net.Dial("tcp", status)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if code, _ := attack.CallAsOther(t, attack.Call{Network: "tcp", Address: status, Method: "GET", Path: "/metrics"}); code != http.StatusOK {
		t.Errorf("beside silent connections: %d", code)
	}
	if files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.Cmd.Process.Pid)); err != nil || len(files) > 1000 {
		t.Errorf("the agent has %d descriptors, %v", len(files), err)
	}
	s.stopAgent(t, a)
}

// TestAgentClaimed checks that another user who holds the claim to measure this machine keeps
// neither the real agent nor a standalone job from measuring.
func TestAgentClaimed(t *testing.T) {
	attackStage(t)
	hosttest.Need(t, "root")
	s := newScene(t)
	a, _, _ := s.startAgent(t)
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	tok, err := token.Parse(s.agent)
	if err != nil {
		t.Fatal(err)
	}
	ledger := enroll.LedgerID(tok.CA())
	claim := regexp.MustCompile(`@mete\.claim\.(` + regexp.QuoteMeta(ledger) + `\S*)`).FindSubmatch(b)
	if claim == nil {
		t.Fatalf("no claim for %s in %s", ledger, b)
	}
	s.stopAgent(t, a)
	otheruser.Hold(t, string(claim[1]), otheruser.Listening, "")
	a, _, _ = s.startAgent(t)
	if !strings.Contains(a.Log.String(), "claim") {
		t.Errorf("the agent does not say that its claim is held:\n%s", a.Log.String())
	}
	s.stopAgent(t, a)
	job := s.Token(t, "job", "--cluster", "lab")
	cmd := exec.CommandContext(t.Context(), filepath.Join(programs.Dir(t), "mete"), "run", "--server", s.URL, "--name", "beside-a-claim", "--", "true")
	cmd.Env = append(os.Environ(), "METE_TOKEN="+job, "METE_STATE="+t.TempDir(), "METE_SOCKET="+filepath.Join(t.TempDir(), "none"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("mete run: %v\n%s", err, out)
	}
	testkit.Eventually(t, "the job is in the ledger", func() bool {
		return strings.Contains(s.Do(t, "GET", "/v1/workloads", nil, attack.Bearer(s.admin)...).Body, "beside-a-claim")
	})
}

// TestAgentIdentities checks that another user books what they use to no job, container or virtual
// machine of others, with the names and command lines of these.
func TestAgentIdentities(t *testing.T) {
	attackStage(t)
	hosttest.Need(t, "root", "cgroup1")
	s := newScene(t)
	own := delegate(t)
	const job, uuid = "01J0000000000000000000VICT", "01234567-89ab-4def-8123-456789abcdef"
	id := make([]byte, 32) // other tests have groups of the usual example
	_, _ = rand.Read(id)
	container := hex.EncodeToString(id)
	a, _, _ := s.startAgent(t)
	for _, group := range []string{"mete-run-" + job, "docker-" + container + ".scope"} {
		attack.Start(t, attack.Config{UID: hosttest.OtherUID}, "/bin/sh", "-c", `mkdir "$0" && echo $$ > "$0/cgroup.procs" && i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; kill -STOP $$`, filepath.Join(own, group))
	}
	dir, err := os.MkdirTemp("", "mete-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := os.ReadFile("/bin/dash")
	if err != nil {
		t.Fatal(err)
	}
	qemu := filepath.Join(dir, "qemu-system-x86_64")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(qemu, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	attack.Start(t, attack.Config{UID: hosttest.OtherUID}, qemu, "-c", `mkdir "$0" && echo $$ > "$0/cgroup.procs" && i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; kill -STOP $$`, filepath.Join(own, "fake"), "-uuid", uuid, "-name", "victim-vm", "-device", "vhost-vsock-pci,guest-cid=42")
	// The groups are booked.
	var workloads string
	testkit.Eventually(t, "the groups are booked", func() bool {
		workloads = s.Do(t, "GET", "/v1/workloads?limit=10000", nil, attack.Bearer(s.admin)...).Body
		return strings.Contains(workloads, job) && strings.Contains(workloads, container) && strings.Contains(workloads, "fake")
	})
	for line := range strings.Lines(workloads) {
		for _, key := range []string{job, container, uuid} {
			if strings.Contains(line, fmt.Sprintf(`"key":%q`, key)) {
				t.Errorf("another user books to %s", line)
			}
		}
	}
	a.Await(t, "which are not believed") // what its command line says
	if vms := s.Do(t, "GET", "/v1/vms", nil, attack.Bearer(s.admin)...).Body; strings.Contains(vms, uuid) || strings.Contains(vms, "victim-vm") {
		t.Errorf("another user's program is a virtual machine: %s", vms)
	}
	s.stopAgent(t, a)
}

// delegate returns the directory of a new control group that root delegated to another user.
func delegate(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/cgroup/cpuacct", "mete-attack-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		testkit.Eventually(t, "the control group is empty", func() bool {
			below, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
			for _, g := range below {
				_ = os.Remove(filepath.Dir(g))
			}
			return os.Remove(dir) == nil
		})
	})
	for _, name := range []string{"", "cgroup.procs", "tasks"} {
		if err := os.Chown(filepath.Join(dir, name), hosttest.OtherUID, hosttest.OtherUID); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// freeAddress returns an address of the loopback at which nothing listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return fmt.Sprint(ln.Addr())
}
