package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A node is a machine of a cluster: containerd, kubelet and kube-proxy in namespaces of their own (network,
// mounts, processes, names, IPC, control groups), so that several fit on one machine, and nothing of that
// machine's own control groups, mounts, settings and network changes.
type node struct {
	name  string
	index int
}

func (n node) address() string   { return fmt.Sprintf("10.99.0.%d", 10+n.index) }
func (n node) pods() string      { return fmt.Sprintf("10.244.%d.0/24", n.index) }
func (n node) namespace() string { return "mete-tb-" + n.name }
func (n node) link() string      { return fmt.Sprintf("mete-tb%d", n.index) }

// makeBridge makes the network of the nodes.
func makeBridge() error {
	return errors.Join(run("ip", "link", "add", bridge, "type", "bridge"), run("ip", "addr", "add", bridgeAddress+"/24", "dev", bridge), run("ip", "link", "set", bridge, "up"))
}

// connect makes the node's network namespace, with routes to the pods of all nodes.
func (n node) connect(all []node) error {
	in := func(args ...string) error { return run("ip", append([]string{"-n", n.namespace()}, args...)...) }
	errs := []error{
		run("ip", "netns", "add", n.namespace()),
		run("ip", "link", "add", n.link(), "type", "veth", "peer", "name", "eth0", "netns", n.namespace()),
		run("ip", "link", "set", n.link(), "master", bridge, "up"),
		in("addr", "add", n.address()+"/24", "dev", "eth0"), in("link", "set", "lo", "up"), in("link", "set", "eth0", "up"),
		in("route", "add", "default", "via", bridgeAddress),
		run("ip", "route", "replace", n.pods(), "via", n.address(), "dev", bridge),
	}
	for _, other := range all {
		if other != n {
			errs = append(errs, in("route", "replace", other.pods(), "via", other.address()))
		}
	}
	return errors.Join(errs...)
}

// A hierarchy is one of control groups, version 1.
type hierarchy struct{ controllers, path string } // of this process

// hierarchies lists those that this process is in.
func hierarchies() (list []hierarchy, err error) {
	f, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	for s := bufio.NewScanner(f); s.Scan(); {
		parts := strings.SplitN(s.Text(), ":", 3)
		if len(parts) == 3 && parts[1] != "" {
			list = append(list, hierarchy{parts[1], parts[2]})
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no control groups of version 1: nodes on version 2 alone are not supported")
	}
	return list, nil
}

// mount is the directory at which a hierarchy is mounted.
func (h hierarchy) mount() string {
	return filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(h.controllers, "name="))
}

// groups makes the node's groups, one below this process's own in each hierarchy, and returns their directories.
func (n node) groups() (dirs []string, err error) {
	list, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range list {
		dir := filepath.Join(h.mount(), h.path, n.namespace())
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
		if h.controllers != "cpuset" {
			continue
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // a new group has none
			b, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), b, 0o644)
			}
			if err != nil {
				return nil, err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.clone_children"), []byte("1"), 0o644); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// removeGroups removes the groups of all nodes, those of earlier clusters too.
func removeGroups() error {
	list, err := hierarchies()
	if err != nil {
		return nil // there can be none
	}
	var errs []error
	for _, h := range list {
		tops, err := filepath.Glob(filepath.Join(h.mount(), h.path, "mete-tb-*"))
		errs = append(errs, err)
		for _, top := range tops {
			errs = append(errs, wait(5*time.Second, func() error { return removeTree(top) }))
		}
	}
	return errors.Join(errs...)
}

// removeTree removes a group and those below it, after killing what is left in them.
func removeTree(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		b, _ := os.ReadFile(filepath.Join(dirs[i], "cgroup.procs"))
		for pid := range strings.FieldsSeq(string(b)) {
			var n int
			if _, err := fmt.Sscan(pid, &n); err == nil && n > 1 {
				_ = syscall.Kill(n, syscall.SIGKILL) // it may have ended
			}
		}
		err = errors.Join(err, os.Remove(dirs[i]))
	}
	return err
}

// removeNetwork removes the bridge, and the namespaces and links of nodes, if they exist.
func removeNetwork(nodes []node) {
	for _, n := range nodes {
		_, _ = run("ip", "netns", "del", n.namespace()), run("ip", "link", "del", n.link())
	}
	_ = run("ip", "link", "del", bridge) // its routes go with it
}

// startNode starts a node. A process of this program enters the groups and the network namespace, and
// starts the first process of the other namespaces.
func (c *cluster) startNode(n node) error {
	dir := c.path(n.name)
	for _, d := range []string{"lib/containerd", "lib/kubelet", "lib/cni", "log", "cni"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	groups, err := n.groups()
	if err != nil {
		return err
	}
	for file, text := range map[string]string{"containerd.toml": c.containerdConfig(n), "kubelet.yaml": c.kubeletConfig(n), "cni/10-bridge.conflist": n.networkConfig()} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return c.start(n.name, exec.Command(self, append([]string{"enter", n.namespace(), "boot", c.bin, c.dir, n.name, n.address(), strconv.FormatBool(c.peers), "--"}, groups...)...))
}

// enter puts this process into control groups and a network namespace, and starts itself with args as the
// first process of the other namespaces. It must run in the main thread.
func enter(namespace string, args, groups []string) error {
	for _, g := range groups {
		if err := os.WriteFile(filepath.Join(g, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	f, err := os.Open("/run/netns/" + namespace)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Setns(int(f.Fd()), unix.CLONE_NEWNET), f.Close()); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP}
	return cmd.Run()
}

func (c *cluster) containerdConfig(n node) string {
	return fmt.Sprintf(`version = 3
root = '/var/lib/containerd'
state = '/run/containerd'
[grpc]
  address = '/run/containerd/containerd.sock'
[plugins.'io.containerd.cri.v1.images']
  snapshotter = 'overlayfs'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%s'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true # root may lack CAP_SYS_RESOURCE here
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['%s']
  conf_dir = '%s'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
`, pauseImage, filepath.Join(c.bin, "cni"), c.path(n.name, "cni"))
}

func (c *cluster) kubeletConfig(n node) string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false # the default since 1.35 refuses version 1
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
address: 0.0.0.0
tlsCertFile: %[1]s.crt
tlsPrivateKeyFile: %[1]s.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[2]s}}
authorization: {mode: Webhook}
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
clusterDomain: cluster.local
nodeStatusUpdateFrequency: 4s
syncFrequency: 10s
volumeStatsAggPeriod: 10s
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
imageMaximumGCAge: 0s
shutdownGracePeriod: 0s
`, c.certificate(n.name), c.certificate("ca.crt"))
}

func (n node) networkConfig() string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "testbed", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, n.pods())
}
