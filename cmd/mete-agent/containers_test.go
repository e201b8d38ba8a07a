package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// An engine is a daemon that runs containers.
type engine struct {
	*site
	dir, socket string
	client      []string // command of its client
	run         []string // arguments of each run
	serve       func() *program
	daemon      *program
}

func (e *engine) command(args ...string) string {
	e.t.Helper()
	c := exec.Command(e.client[0], slices.Concat(e.client[1:], args)...)
	c.Env = append(os.Environ(), "TMPDIR="+e.dir)
	out, err := c.Output()
	if err != nil {
		x, _ := err.(*exec.ExitError)
		e.t.Fatalf("%v: %v\n%s%s", c.Args, err, out, x.Stderr)
	}
	return strings.TrimSpace(string(out))
}

// start starts the daemon and waits until it answers.
func (e *engine) start() {
	e.t.Helper()
	e.daemon = e.serve()
	e.daemon.await("the daemon's answer", func() bool {
		return exec.Command("curl", "-sf", "--unix-socket", e.socket, "http://localhost/_ping").Run() == nil
	})
}

// burn runs a container that uses CPU time, and returns how much it says.
func (e *engine) burn(cpu string, args ...string) int64 {
	e.t.Helper()
	out := e.command(slices.Concat([]string{"run", "--rm", "--network", "none"}, e.run, args, []string{"burner:1", "/pod", "burn", "-cpu", cpu})...)
	var said struct {
		CPU int64 `json:"cpu_ns"`
	}
	if err := json.Unmarshal([]byte(out), &said); err != nil || said.CPU == 0 {
		e.t.Fatalf("%v: %q", err, out)
	}
	return said.CPU
}

// newEngine prepares a daemon with an image that has the program of test pods.
func newEngine(t *testing.T, name string) *engine {
	t.Helper()
	s := newSite(t)
	e := &engine{site: s, dir: filepath.Join(s.dir, "engine")}
	e.socket = filepath.Join(e.dir, "sock")
	if err := os.Mkdir(e.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	switch name {
	case "docker":
		e.client = []string{"docker", "-H", "unix://" + e.socket}
		e.serve = func() *program {
			return s.start("dockerd", exec.Command("/usr/sbin/dockerd", "-H", "unix://"+e.socket, "--data-root", filepath.Join(e.dir, "data"), "--exec-root", filepath.Join(e.dir, "exec"),
				"--pidfile", filepath.Join(e.dir, "pid"), "--bridge=none", "--iptables=false", "--ip6tables=false", "--storage-driver=vfs", "--log-level=error"))
		}
	case "podman":
		e.client = []string{"podman", "--root", filepath.Join(e.dir, "data"), "--runroot", filepath.Join(e.dir, "run"), "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"}
		// Its defaults for limits are above those of a test in a container.
		e.run = []string{"--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"}
		e.serve = func() *program {
			return s.start("podman", exec.Command(e.client[0], slices.Concat(e.client[1:], []string{"system", "service", "-t", "0", "unix://" + e.socket})...))
		}
	}
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(e.dir, "pod"), "mete.dev/mete/internal/testkit/testbed/pod")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := exec.Command("tar", "-cf", filepath.Join(e.dir, "image.tar"), "-C", e.dir, "pod").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		// Mounts of containers would hinder the removal of the directory.
		e.start()
		if ids := strings.Fields(e.command("ps", "-aq")); len(ids) > 0 {
			e.command(append([]string{"rm", "-f"}, ids...)...)
		}
		e.daemon.stop()
	})
	e.start()
	e.command("import", filepath.Join(e.dir, "image.tar"), "burner:1")
	return e
}

// TestContainers measures containers of a real Docker and a real Podman: each job has the CPU time that its
// containers say they used, under the names that their daemon gives them, also where they live for 0.2 s and are
// removed at once.
func TestContainers(t *testing.T) {
	testkit.Stage(t, "peers", "runs daemons of containers")
	hosttest.Need(t, "root", "cgroup1", "bpf", "curl", "dockerd", "podman")
	for _, name := range []string{"docker", "podman"} {
		t.Run(name, func(t *testing.T) { newEngine(t, name).test() })
	}
}

func (e *engine) test() {
	t := e.t
	e.site.serve()
	e.token = e.site.run("token", "create", "--role", "agent")
	e.measure("-reader", "bpf", "-container-socket", e.socket)

	// The first container makes the agent connect.
	e.command(slices.Concat([]string{"run", "-d", "--network", "none", "--name", "first"}, e.run, []string{"burner:1", "/pod", "burn", "-cpu", "100ms", "-stay"})...)
	e.node.waitOutput("containers are named")
	const replicas, starting = 10, .03 // the runtime's process in the container's group, s a container
	want := map[string]int64{}
	for i := range replicas {
		want["shop"] += e.burn("200ms", "--name", fmt.Sprintf("shop-worker-%d", i+1), "--label", "com.docker.compose.project=shop", "--label", "com.docker.compose.service=worker")
	}
	want["nightly"] = e.burn("200ms", "--name", "own", "--label", "mete.dev/job=nightly", "--label", "com.docker.compose.project=shop")
	e.command("rename", "first", "renamed")
	// Its names are found again after a restart of the daemon.
	e.daemon.stop()
	e.start()
	e.command(slices.Concat([]string{"run", "-d", "--network", "none", "--name", "later", "--label", "mete.dev/job=later"}, e.run, []string{"burner:1", "/pod", "burn", "-cpu", "100ms", "-stay"})...)

	type group struct {
		Workload, Job, Container string
		CPU                      float64 `json:"cpu_seconds"`
	}
	ask := func(args ...string) (groups []group) {
		t.Helper()
		out := e.site.run(append([]string{"usage", "--from", "-1h", "-o", "json", "--server", e.url, "--token", e.viewer}, args...)...)
		var a struct{ Groups []group }
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return a.Groups
	}
	e.node.await("the job after the restart", func() bool {
		return slices.ContainsFunc(ask("--by", "job"), func(g group) bool { return g.Job == "later" && g.CPU > .1 })
	})
	// Names outlive an agent that does not know them: of a container that ended while there was none, and of those that the
	// next one finds before it has asked.
	e.command(slices.Concat([]string{"run", "-d", "--network", "none", "--name", "gone"}, e.run, []string{"burner:1", "/pod", "burn", "-cpu", "50ms", "-stay"})...)
	e.node.await("the name of a container", func() bool {
		return slices.ContainsFunc(ask("--by", "workload"), func(g group) bool { return g.Workload == "gone" })
	})
	e.node.stop()
	e.command("rm", "-f", "gone")
	e.measure("-reader", "bpf", "-container-socket", "none")
	e.waitStored()
	e.node.stop()
	// An agent without a server has the names in its metrics.
	status := freePort(t)
	alone := e.site.start("agent alone", e.site.command("1", "-server", "", "-socket", "", "-window", "1s", "-status", status, "-status-workloads", "-container-socket", e.socket))
	alone.await("a name in the metrics", func() bool {
		out, err := exec.Command("curl", "-sf", "http://"+status+"/metrics").Output()
		return err == nil && strings.Contains(string(out), `"later"`)
	})
	alone.stop()
	e.daemon.stop()
	for _, g := range ask("--by", "job") {
		if ns, ok := want[g.Job]; ok {
			count := 1
			if g.Job == "shop" {
				count = replicas
			}
			said := float64(ns) / 1e9
			t.Logf("%s: %.4f s, its containers say %.4f", g.Job, g.CPU, said)
			if g.CPU < said*.999 || g.CPU > said*1.001+starting*float64(count) {
				t.Errorf("job %s used %.4f s, its containers say %.4f", g.Job, g.CPU, said)
			}
			delete(want, g.Job)
		}
	}
	if len(want) > 0 {
		t.Errorf("jobs without use: %v", want)
	}
	names := map[string]string{} // of containers in the ledger, to their jobs
	for _, g := range ask("--by", "workload,job,container", "--where", "kind=container") {
		names[g.Workload] = g.Job + "/" + g.Container
	}
	wanted := map[string]string{"renamed": "renamed/renamed", "gone": "gone/gone", "own": "nightly/own", "later": "later/later"}
	for i := range replicas {
		wanted[fmt.Sprintf("shop-worker-%d", i+1)] = "shop/worker"
	}
	if !maps.Equal(names, wanted) {
		t.Errorf("containers %v, want %v", names, wanted)
	}
}
