package guest

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mete.dev/mete/internal/collect/powersim"
	"mete.dev/mete/internal/guest/energyshare"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/testkit/qemu"
	"mete.dev/mete/internal/testkit/syncbuf"
	"mete.dev/mete/internal/testkit/vsockdev"
)

const (
	name = "mete-test-guest"
	uuid = "6d657465-0000-4000-8000-00000000babe"
	cid  = 77

	// Power of the simulated package in W: idle, and per busy core.
	idleWatts, coreWatts = 20, 8
)

// A rig is a server, the agent of this machine, its simulated meter, a virtual machine, and
// the agent in the virtual machine.
type rig struct {
	t      *testing.T
	log    *slog.Logger
	dir    string
	kernel *qemu.Kernel

	url, viewer, token string
	status             string // address of the host agent's /metrics
	groups             []string
	server, host       *program

	vm      *qemu.Machine
	console syncbuf.Buffer // of the guest, including its agent's log
	agent   int            // PID in the guest
	open    atomic.Bool    // the guest can reach the host's agent by vsock
	seen    record

	mu    sync.Mutex
	taps  []*tap
	lines []string // of the table of delays
}

func newRig(t *testing.T) *rig {
	t.Helper()
	// The path of a socket must be short.
	dir, err := os.MkdirTemp("", "mete-vm-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, dir: dir, log: slog.New(slog.NewTextHandler(t.Output(), nil)), status: freePort(t)}
	if r.kernel, err = qemu.FindKernel(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "vm", "shares/" + name, "back", "powercap"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", dir+"/bin/", "mete.dev/mete/cmd/mete", "mete.dev/mete/cmd/mete-server", "mete.dev/mete/cmd/mete-agent",
		"mete.dev/mete/internal/testkit/qemu/init", "mete.dev/mete/internal/testkit/qemu/peer", "mete.dev/mete/internal/testkit/loadgen")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	r.group()
	return r
}

// freePort returns a free address.
func freePort(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().String()
}

// group creates a control group for the virtual machine in each hierarchy that counts
// something.
func (r *rig) group() {
	r.t.Helper()
	h, err := hostfs.Open("/")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	ys, err := h.Hierarchies()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, y := range ys {
		if !y.V2 && !y.Has("cpuacct") && !y.Has("memory") {
			continue
		}
		dir := filepath.Join(y.Mount, fmt.Sprint(name, "-", os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			r.t.Fatal(err)
		}
		if y.Has("cpuacct") {
			r.groups = append([]string{dir}, r.groups...)
		} else {
			r.groups = append(r.groups, dir)
		}
		r.t.Cleanup(func() {
			err := os.Remove(dir)
			for end := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(end); err = os.Remove(dir) {
				time.Sleep(50 * time.Millisecond) // until the kernel has released QEMU
			}
			if err != nil {
				r.t.Error(err)
			}
		})
	}
}

// serve starts the server for both agents, with more flags.
func (r *rig) serve(flags ...string) {
	r.t.Helper()
	r.server = r.start(nil, "mete", append([]string{"server", "--listen", "127.0.0.1:0", "--name", qemu.Gateway}, flags...)...)
	url := r.says(&r.server.log, 0, 30*time.Second, `mete server: (https://\S+)`)[1]
	r.token = r.run("token", "create", "--role", "agent", "--uses", "2")
	r.viewer = r.run("token", "create", "--role", "viewer")
	r.url = url
}

// simulate starts the meter of this machine.
func (r *rig) simulate() {
	r.t.Helper()
	cfg := powersim.Default()
	cfg.Dir = filepath.Join(r.dir, "powercap")
	cfg.Zones = []powersim.Zone{{ID: "intel-rapl:0", Name: "package-0", Domain: power.Package, Model: powersim.PowerModel{Idle: idleWatts * 1e6, Core: coreWatts * 1e6}}}
	cfg.Loads = []powersim.Load{{Name: name, Group: r.groups[0]}}
	cfg.Whole = filepath.Dir(r.groups[0])
	p, err := powersim.Start(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			r.t.Error(err)
		}
	})
}

// socket returns the path at which the guest's vsock connections arrive.
func (r *rig) socket() string { return filepath.Join(r.dir, "handover") }

// startHost starts the agent of this machine, with known idle power.
func (r *rig) startHost() {
	r.t.Helper()
	r.host = r.start([]string{"METE_TOKEN=" + r.token}, "mete-agent", "-server", r.url, "-socket", "", "-status", r.status, "-window", "2s",
		"-powercap", filepath.Join(r.dir, "powercap"), "-idle-power", fmt.Sprint("package=", idleWatts),
		"-vm-shares", filepath.Join(r.dir, "shares"), "-vm-vsock-socket", uuid+"="+r.socket(),
		"-host-shares", "", "-host-vsock=false") // in case this machine is itself a virtual machine
	r.says(&r.host.log, 0, 30*time.Second, "msg=measuring")
}

// boot starts the virtual machine.
func (r *rig) boot() {
	r.t.Helper()
	device := filepath.Join(r.dir, "vsock")
	dev, err := vsockdev.Open(device, cid, r.dial, r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- dev.Run(r.t.Context()) }()
	r.t.Cleanup(func() {
		_ = dev.Close() // ends Run
		if err := <-served; err != nil {
			r.t.Error(err)
		}
		if r.t.Failed() {
			r.t.Logf("console of the guest:\n%s", &r.console)
		}
	})
	bin := func(name string) string { return filepath.Join(r.dir, "bin", name) }
	began := time.Now()
	r.vm, err = qemu.Boot(r.t.Context(), qemu.Config{
		Name: name, UUID: uuid, CPUs: 1, Memory: 320, Kernel: r.kernel, Init: bin("init"), Network: true,
		Files: map[string]string{"/bin/mete-agent": bin("mete-agent"), "/bin/peer": bin("peer"), "/bin/load": bin("loadgen")},
		Shares: []qemu.Share{
			{Dir: filepath.Join(r.dir, "shares", name), Guest: "/var/scaphandre", ReadOnly: true},
			{Dir: filepath.Join(r.dir, "back"), Guest: "/back"},
		},
		Args: append(vsockdev.Args(device), "-qmp", "unix:"+filepath.Join(r.dir, "qmp")+",server=on,wait=off"), Groups: r.groups, Dir: filepath.Join(r.dir, "vm"),
	}, func(line string) { fmt.Fprintln(&r.console, line) }, r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.vm.Close)
	r.t.Logf("booted in %.1f s", time.Since(began).Seconds())
}

// dial connects the guest to the agent of this machine, if allowed.
func (r *rig) dial(port uint32) (net.Conn, error) {
	if port != energyshare.Port || !r.open.Load() {
		return nil, fault.ErrUnavailable
	}
	c, err := net.Dial("unix", r.socket())
	if err != nil {
		return nil, err
	}
	t := &tap{Conn: c, seen: &r.seen}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taps = append(r.taps, t)
	return t, nil
}

// startGuest starts the agent in the guest.
func (r *rig) startGuest() {
	r.t.Helper()
	url := strings.Replace(r.url, "127.0.0.1", qemu.Gateway, 1)
	var err error
	r.agent, err = r.vm.Start("/sys/fs/cgroup/agent", []string{"METE_TOKEN=" + r.token}, "/bin/mete-agent", "-server", url, "-state", "/tmp/mete",
		"-socket", "", "-window", "2s")
	if err != nil {
		r.t.Fatal(err)
	}
}

// stopGuest stops it with SIGTERM.
func (r *rig) stopGuest() {
	r.t.Helper()
	if err := r.vm.Signal(r.agent, int(syscall.SIGTERM)); err != nil {
		r.t.Fatal(err)
	}
	if code, err := r.vm.Wait(r.agent, time.Minute); err != nil || code != 0 {
		r.t.Fatalf("the guest's agent after SIGTERM: exit code %d, %v", code, err)
	}
}

// work runs a load in the guest for a while, pauses, and runs it again.
func (r *rig) work(long time.Duration) {
	r.t.Helper()
	for range 2 {
		pid, err := r.vm.Start("/sys/fs/cgroup/load", nil, "/bin/load", "busy", "-cores", "1", "-for", (long / 3).String())
		if err != nil {
			r.t.Fatal(err)
		}
		if code, err := r.vm.Wait(pid, time.Minute); err != nil || code != 0 {
			r.t.Fatalf("load in the guest: exit code %d, %v", code, err)
		}
		time.Sleep(long / 6)
	}
}
