// Command init is the first process of a guest that tests boot: it loads modules,
// mounts file systems, and then handles requests over a virtio port, see [qemu.Request]. In a guest
// with a root file system it starts itself there to handle them, and becomes that system's
// /sbin/init.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mete.dev/mete/internal/testkit/qemu"
)

// inRoot is the path of this program in a root file system, and its only argument.
const inRoot = "/mete-init"

func main() {
	if len(os.Args) == 1 {
		fmt.Println("init: began")
		if err := begin(); err != nil {
			fmt.Println("init:", err)
		}
	}
	err := serve()
	fmt.Println("init: ended:", err)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// begin sets the guest up. With a root file system it returns only if that fails.
func begin() error {
	var s qemu.Settings
	text, err := os.ReadFile(qemu.SettingsFile)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if s.Root != "" {
		return errors.Join(err, enter(&s))
	}
	return errors.Join(err, setUp(&s))
}

// enter starts this program in the root file system, and executes its /sbin/init.
func enter(s *qemu.Settings) error {
	const root = "/root"
	if err := mount("devtmpfs", "devtmpfs", "/dev", "", 0); err != nil {
		return err
	}
	for _, m := range s.Modules {
		if err := load(m); err != nil {
			return err
		}
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(s.Root); err == nil {
			break
		}
	}
	program, err := os.ReadFile("/init")
	if err != nil {
		return err
	}
	if err := errors.Join(
		mount(s.Root, "ext4", root, "", 0),
		os.WriteFile(root+inRoot, program, 0o700),
		mount("proc", "proc", root+"/proc", "", 0),
		mount("sysfs", "sysfs", root+"/sys", "", 0),
		mount("devtmpfs", "devtmpfs", root+"/dev", "", 0),
		unix.Chdir(root), unix.Mount(".", "/", "", unix.MS_MOVE, ""), unix.Chroot("."),
	); err != nil {
		return err
	}
	cmd := exec.Command(inRoot, inRoot)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// In a session of its own, signals for the console do not reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	return unix.Exec("/sbin/init", []string{"/sbin/init"}, []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"})
}

// setUp does as much of the setup as possible, and returns all errors.
func setUp(s *qemu.Settings) error {
	errs := []error{unix.Sethostname([]byte(s.Name))}
	for _, m := range []struct{ kind, at, options string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""},
		{"devtmpfs", "/dev", ""},
		{"tmpfs", "/run", ""},
		{"tmpfs", "/tmp", ""},
		{"cgroup2", "/sys/fs/cgroup", ""},
		{"bpf", "/sys/fs/bpf", ""},
	} {
		errs = append(errs, mount(m.kind, m.kind, m.at, m.options, 0))
	}
	for _, m := range s.Modules {
		errs = append(errs, load(m))
	}
	for i, share := range s.Shares {
		flags := uintptr(0)
		if share.ReadOnly {
			flags = unix.MS_RDONLY
		}
		errs = append(errs, mount(qemu.Tag(i), "9p", share.Guest, "trans=virtio,version=9p2000.L,msize=65536", flags))
	}
	errs = append(errs, os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpu +memory +io +pids"), 0))
	errs = append(errs, up("lo", net.IPv4(127, 0, 0, 1), net.CIDRMask(8, 32)))
	if _, err := os.Stat("/sys/class/net/eth0"); err == nil {
		// The address that QEMU's user network assigns to its first guest.
		errs = append(errs, up("eth0", net.IPv4(10, 0, 2, 15), net.CIDRMask(24, 32)))
	}
	return errors.Join(errs...)
}

func mount(source, kind, at, options string, flags uintptr) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, at, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, at, err)
	}
	return nil
}

func load(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}

// up sets an interface's address and brings it up.
func up(name string, ip net.IP, mask net.IPMask) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	for _, a := range []struct {
		request uint
		value   []byte
	}{{unix.SIOCSIFADDR, ip.To4()}, {unix.SIOCSIFNETMASK, mask}} {
		r, err := unix.NewIfreq(name)
		if err == nil {
			err = r.SetInet4Addr(a.value)
		}
		if err == nil {
			err = unix.IoctlIfreq(fd, a.request, r)
		}
		if err != nil {
			return fmt.Errorf("address of %s: %w", name, err)
		}
	}
	r, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// port opens the virtio port with that name.
func port(name string) (*os.File, error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		if err != nil {
			return nil, err
		}
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == name {
				return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(n))), os.O_RDWR, 0)
			}
		}
	}
	return nil, fmt.Errorf("no port %s", name)
}

// A supervisor handles requests.
type supervisor struct {
	out *os.File
	mu  sync.Mutex // guards out and children
	// children are the started programs, by PID.
	children map[int]*child
}

type child struct {
	done chan struct{} // closed when it has ended
	code int
}

// serve handles requests until the port is closed.
func serve() error {
	f, err := port(qemu.Port)
	if err != nil {
		return err
	}
	i := &supervisor{out: f, children: map[int]*child{}}
	if _, err := fmt.Fprintln(f, "ready"); err != nil {
		return err
	}
	r := bufio.NewReader(f)
	for {
		line, err := r.ReadBytes('\n')
		if err == io.EOF {
			time.Sleep(10 * time.Millisecond) // the host is not connected
			continue
		} else if err != nil {
			return err
		}
		var q qemu.Request
		if err := json.Unmarshal(line, &q); err != nil {
			return err
		}
		go i.handle(q)
	}
}

func (s *supervisor) handle(q qemu.Request) {
	var a qemu.Reply
	var err error
	switch q.Do {
	case "start":
		a.PID, err = s.start(q)
	case "signal":
		err = syscall.Kill(q.PID, syscall.Signal(q.Sig))
	case "wait":
		s.mu.Lock()
		k := s.children[q.PID]
		s.mu.Unlock()
		if k == nil {
			err = fmt.Errorf("no process %d", q.PID)
			break
		}
		<-k.done
		a.Code = k.code
	case "read":
		a.Data, err = os.ReadFile(q.Path)
	case "write":
		err = os.WriteFile(q.Path, q.Data, 0o644)
	case "get":
		a.Data, err = get(q.Path)
	default:
		err = fmt.Errorf("unknown request %q", q.Do)
	}
	a.ID = q.ID
	if err != nil {
		a.Err = err.Error()
	}
	b, err := json.Marshal(a)
	if err != nil {
		b = fmt.Appendf(nil, `{"id":%d,"err":%q}`, q.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.out.Write(append(b, '\n')); err != nil {
		fmt.Println("init:", err)
	}
}

// start starts a program, whose output goes to the console.
func (s *supervisor) start(q qemu.Request) (int, error) {
	cmd := exec.Command(q.Args[0], q.Args[1:]...)
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp"}, q.Env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if q.Group != "" {
		if err := os.MkdirAll(q.Group, 0o755); err != nil {
			return 0, err
		}
		dir, err := os.Open(q.Group)
		if err != nil {
			return 0, err
		}
		defer func() { _ = dir.Close() }()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	k := &child{done: make(chan struct{})}
	s.mu.Lock()
	s.children[cmd.Process.Pid] = k
	s.mu.Unlock()
	go func() {
		_ = cmd.Wait() // its code is read below
		k.code = cmd.ProcessState.ExitCode()
		close(k.done)
	}()
	return cmd.Process.Pid, nil
}

// get fetches a URL.
func get(url string) ([]byte, error) {
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Get(url)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(resp.Body)
	return b, errors.Join(err, resp.Body.Close())
}
