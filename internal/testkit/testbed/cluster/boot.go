package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// protected are settings of the kernel that the kubelet writes, with the values that it wants. They belong
// to the whole machine: the node sees files of its own in their place.
var protected = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// boot is the first process of a node: it mounts what the node sees, starts its programs, and ends with them. One of them
// may be cAdvisor, where a DaemonSet would run it: with the node's processes, groups and containerd.
func boot(bin, dir, name, address string, cadvisor bool) error {
	if os.Getpid() != 1 {
		return errors.New("not the first process of a PID namespace")
	}
	home := filepath.Join(dir, name)
	if err := mountNode(home); err != nil {
		return err
	}
	if err := errors.Join(unix.Sethostname([]byte(name)), os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)); err != nil {
		return err
	}
	if err := os.Setenv("PATH", bin+":/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	logs := filepath.Join(dir, "log")
	containerd, err := background(logs, name+"-containerd", "containerd", "-c", filepath.Join(home, "containerd.toml"))
	if err != nil {
		return err
	}
	if err := wait(30*time.Second, func() error { return run("ctr", "version") }); err != nil {
		return err
	}
	images, err := filepath.Glob(filepath.Join(dir, "images", "*.tar"))
	if err != nil {
		return err
	}
	for _, image := range images {
		if err := run("ctr", "-n", "k8s.io", "images", "import", image); err != nil {
			return err
		}
	}
	kubelet, err := background(logs, name+"-kubelet", "kubelet", "--config", filepath.Join(home, "kubelet.yaml"), "--kubeconfig", filepath.Join(dir, name+".kubeconfig"),
		"--hostname-override", name, "--node-ip", address, "--housekeeping-interval", "5s")
	if err != nil {
		return err
	}
	proxy, err := background(logs, name+"-kube-proxy", "kube-proxy", "--kubeconfig", filepath.Join(dir, "proxy.kubeconfig"), "--hostname-override", name, "--proxy-mode", "iptables",
		"--conntrack-max-per-core", "0", "--cluster-cidr", pods)
	if err != nil {
		return err
	}
	programs := map[int]string{containerd: "containerd", kubelet: "kubelet", proxy: "kube-proxy"}
	if cadvisor {
		pid, err := background(logs, name+"-cadvisor", "cadvisor", "-listen", address+":8080")
		if err != nil {
			return err
		}
		programs[pid] = "cadvisor"
	}
	// The first process also inherits processes whose parents ended.
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if what, ok := programs[pid]; ok {
			return fmt.Errorf("%s ended: %d", what, status)
		}
		if err != nil {
			return err
		}
	}
}

// background starts a program with a log, and returns its PID.
func background(logs, name, program string, args ...string) (int, error) {
	cmd := exec.Command(program, args...)
	if err := startLogged(logs, name, cmd); err != nil {
		return 0, err
	}
	return cmd.Process.Pid, nil
}

// mountNode mounts what a node sees, in a mount namespace of its own.
func mountNode(home string) error {
	list, err := hierarchies()
	if err != nil {
		return err
	}
	m := &mounter{}
	m.mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	m.mount("proc", "/proc", "proc", 0, "")
	// The copies of the machine's mounts: its own stay.
	m.err = errors.Join(m.err, unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH))
	m.mount("sysfs", "/sys", "sysfs", 0, "")
	m.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=755")
	for _, h := range list {
		m.make(h.mount())
		options := h.controllers
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		m.mount("cgroup", h.mount(), "cgroup", 0, options)
	}
	m.mount("tmpfs", "/run", "tmpfs", 0, "mode=755")
	m.mount(filepath.Join(home, "lib"), "/var/lib", "", unix.MS_BIND, "")
	m.mount("", "/var/lib", "", unix.MS_SHARED, "") // for volumes that the kubelet mounts for pods
	m.mount(filepath.Join(home, "log"), "/var/log", "", unix.MS_BIND, "")
	own := filepath.Join(home, "sys")
	m.make(own)
	for file, value := range protected {
		copied := filepath.Join(own, filepath.Base(file))
		m.err = errors.Join(m.err, os.WriteFile(copied, []byte(value), 0o644))
		m.mount(copied, "/proc/sys/"+file, "", unix.MS_BIND, "")
	}
	return m.err
}

// A mounter keeps the errors of several mounts.
type mounter struct{ err error }

func (m *mounter) mount(source, target, kind string, flags uintptr, data string) {
	if err := syscall.Mount(source, target, kind, flags, data); err != nil {
		m.err = errors.Join(m.err, fmt.Errorf("mount %s at %s: %w", source, target, err))
	}
}

func (m *mounter) make(dir string) { m.err = errors.Join(m.err, os.MkdirAll(dir, 0o755)) }
