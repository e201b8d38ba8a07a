// Package qemu boots virtual machines for tests: QEMU's CPU emulation, which works
// everywhere, a kernel of Debian, and an init of this project, which mounts directories of
// the host and then handles requests.
package qemu

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// Program is the QEMU program.
const Program = "qemu-system-x86_64"

// Gateway is the host's loopback address in a guest with a network.
const Gateway = "10.0.2.2"

const (
	attempts = 5
	// bootTime is the limit of one attempt: about one boot in six hangs.
	bootTime = 60 * time.Second
)

// A Config configures a machine.
type Config struct {
	Name, UUID string
	CPUs       int
	Memory     int               // MiB
	Kernel     *Kernel           // a result of FindKernel
	Init       string            // the program internal/testkit/qemu/init, linked statically
	Files      map[string]string // more programs and files: path in the guest to file here
	Shares     []Share
	Network    bool     // makes the host's loopback reachable as Gateway
	Args       []string // more arguments for QEMU
	// Root is an image of an ext4 root file system, which is changed. Its /sbin/init becomes the
	// first process, and requests are handled beside it. Files and shares are not for it.
	Root string
	// Groups are directories of control groups of this machine for QEMU, one for each
	// hierarchy.
	Groups []string
	Dir    string // for sockets and the initramfs; its path must be short
}

// Build builds programs of this project for a guest, linked statically, into a directory or a
// file, as go build -o does.
func Build(ctx context.Context, to string, packages ...string) error {
	args := []string{"build", "-ldflags=-s -w", "-o", to}
	for _, p := range packages {
		args = append(args, "mete.dev/mete/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// A Share is a directory of this machine that the guest mounts by 9p.
type Share struct {
	Dir      string // on this machine
	Guest    string // in the guest
	ReadOnly bool
}

// tag returns the 9p tag of a share.
func tag(i int) string { return fmt.Sprint("share", i) }

// Tag returns the 9p tag of the share with this index, for the guest's init.
func Tag(i int) string { return tag(i) }

// A Machine is a running guest.
type Machine struct {
	cmd     *exec.Cmd
	ended   chan struct{} // closed when QEMU has exited
	err     error         // the exit error
	control *control
	monitor *monitor
}

// Boot starts a guest and returns when its init is ready for requests. The guest's console
// output goes to console, line by line. The machine ends with [Machine.Close] or with this
// process.
func Boot(ctx context.Context, cfg Config, console func(line string), log *slog.Logger) (*Machine, error) {
	if cfg.Kernel == nil || cfg.CPUs < 1 || cfg.Memory < 64 || cfg.Dir == "" {
		return nil, fmt.Errorf("qemu: incomplete configuration %+v: %w", cfg, fault.ErrInvalid)
	}
	if err := cfg.initramfs(); err != nil {
		return nil, fmt.Errorf("initramfs: %w", err)
	}
	var errs []error
	for range attempts {
		m, err := cfg.boot(ctx, console)
		if err == nil {
			return m, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
		log.Warn("the guest did not boot", "err", err)
	}
	return nil, fmt.Errorf("qemu: %w", errors.Join(errs...))
}

// initramfs writes the guest's root file system.
func (cfg *Config) initramfs() (err error) {
	f, err := os.Create(filepath.Join(cfg.Dir, "initramfs"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	a := &archive{w: w}
	for _, d := range []string{"proc", "sys", "dev", "run", "tmp", "var", "etc"} {
		a.dir(d)
	}
	s := Settings{Name: cfg.Name, Shares: cfg.Shares}
	wanted := wantedModules
	if cfg.Root != "" {
		s.Root = "/dev/vda"
		wanted = append(slices.Clone(wanted), "crc32c_generic", "ext4")
	}
	modules, err := cfg.Kernel.load(wanted)
	if err != nil {
		return err
	}
	for _, m := range modules {
		path := "/lib/modules/" + m.name + ".ko"
		s.Modules = append(s.Modules, path)
		a.file(path, 0o644, m.code)
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	a.file(SettingsFile, 0o644, text)
	for to, from := range cfg.Files {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		a.file(to, 0o755, b)
	}
	b, err := os.ReadFile(cfg.Init)
	if err != nil {
		return err
	}
	a.file("init", 0o755, b)
	return errors.Join(a.close(), w.Flush())
}

// command returns QEMU's command line.
func (cfg *Config) command() []string {
	args := []string{
		"-name", "guest=" + cfg.Name + ",debug-threads=on", "-uuid", cfg.UUID,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", "pc,accel=tcg,memory-backend=memory", "-cpu", "max", "-smp", fmt.Sprint(cfg.CPUs), "-m", fmt.Sprint(cfg.Memory),
		"-object", fmt.Sprintf("memory-backend-memfd,id=memory,share=on,size=%dM", cfg.Memory),
		"-kernel", cfg.Kernel.Image, "-initrd", filepath.Join(cfg.Dir, "initramfs"),
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init mitigations=off",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "socket,id=control,path=" + cfg.socket("control"),
		"-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=" + Port,
		"-chardev", "socket,id=rig,path=" + cfg.socket("monitor"), "-mon", "chardev=rig,mode=control",
		"-device", "virtio-rng-pci",
	}
	for i, s := range cfg.Shares {
		share := fmt.Sprintf("local,path=%s,mount_tag=%s,security_model=none", s.Dir, tag(i))
		if s.ReadOnly {
			share += ",readonly=on"
		}
		args = append(args, "-virtfs", share)
	}
	if cfg.Root != "" {
		args = append(args, "-drive", "file="+cfg.Root+",if=none,id=root,format=raw,cache=unsafe", "-device", "virtio-blk-pci,drive=root")
	}
	if cfg.Network {
		args = append(args, "-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile=")
	}
	return append(args, cfg.Args...)
}

func (cfg *Config) socket(name string) string { return filepath.Join(cfg.Dir, name+".sock") }

// boot makes one attempt.
func (cfg *Config) boot(ctx context.Context, console func(string)) (m *Machine, err error) {
	var listeners [2]*net.UnixListener
	for i, name := range []string{"monitor", "control"} {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.socket(name), Net: "unix"})
		if err != nil {
			return nil, err
		}
		defer func() { _ = ln.Close() }()
		listeners[i] = ln
	}
	m = &Machine{ended: make(chan struct{})}
	output, err := m.run(cfg, console)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	failed := func(err error) (*Machine, error) {
		gone := m.gone()
		m.Close()
		if gone {
			err = fmt.Errorf("%w: %w: %s", err, m.err, bytes.TrimSpace(output.b))
		}
		return nil, err
	}
	var conns [2]net.Conn
	for i, ln := range listeners {
		if conns[i], err = m.accept(ctx, ln); err != nil {
			return failed(err)
		}
	}
	if m.monitor, err = newMonitor(conns[0]); err != nil {
		return failed(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conns[1].SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if m.control, err = newControl(conns[1]); err != nil {
		return failed(err)
	}
	return m, nil
}

// accept waits for QEMU to connect.
func (m *Machine) accept(ctx context.Context, ln *net.UnixListener) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-m.ended:
			_ = ln.SetDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	c, err := ln.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("QEMU does not connect: %w", err)
	}
	return c, nil
}

// run starts QEMU and moves it into its groups. The returned tail holds its output and may
// be read after it has exited.
func (m *Machine) run(cfg *Config, console func(string)) (*tail, error) {
	m.cmd = exec.Command(Program, cfg.command()...)
	output := &tail{}
	m.cmd.Stderr = output
	// It is killed with the thread that started it, which waits for it below.
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := m.cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		lines(out, console)
		m.err = m.cmd.Wait()
		close(m.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	for _, g := range cfg.Groups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), fmt.Append(nil, m.cmd.Process.Pid), 0); err != nil {
			m.Close()
			return nil, err
		}
	}
	return output, nil
}

// lines calls each for each line.
func lines(r io.Reader, each func(string)) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		if text := strings.TrimSpace(s.Text()); text != "" {
			each(text)
		}
	}
	_, _ = io.Copy(io.Discard, r) // the rest of a line that was too long
}

// A tail keeps the last bytes written to it.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	const most = 4 << 10
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-most):]
	return len(p), nil
}

// PID returns QEMU's PID.
func (m *Machine) PID() int { return m.cmd.Process.Pid }

// gone reports whether QEMU has exited.
func (m *Machine) gone() bool {
	select {
	case <-m.ended:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

// Close powers the machine off.
func (m *Machine) Close() {
	_ = m.cmd.Process.Kill() // it may have exited
	<-m.ended
	if m.control != nil {
		_ = m.control.c.Close()
	}
	if m.monitor != nil {
		_ = m.monitor.c.Close()
	}
}
