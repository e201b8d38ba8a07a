// Package testbed runs Kubernetes clusters on this machine for tests: real programs, of versions that are pinned
// in the module testbed, which they are built from. Nothing is downloaded but Go modules.
package testbed

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Kind says which parts a cluster has.
type Kind string

const (
	API  Kind = "api"  // etcd and the API server: objects can be created, nothing runs
	Sim  Kind = "sim"  // also controllers and a scheduler; nodes and pods only seem to run
	Real Kind = "real" // two nodes with containerd and kubelet, node1 and node2; needs root
)

// Options are what a test wants of a cluster.
type Options struct {
	Nodes int // of Sim
	// Images are programs without a dynamic loader, by the name of the image that the nodes have; or
	// absolute paths of images' archives, which end in .tar: then the archive has the image's name.
	Images map[string]string
	// Peers adds to a Real cluster what others than mete measure pods with: cAdvisor on each node, and metrics-server with the
	// settings of its release. The first time builds them, which takes minutes.
	Peers bool
}

// PodImage is an image that nodes of a Real cluster always have; see package pod for what it does.
const PodImage = "mete.test/pod:1"

// A Cluster is one that runs.
type Cluster struct {
	Kubeconfig string // of an administrator
	Logs       string // a directory with one file for each program
	kubectl    string

	cmd    *exec.Cmd
	input  io.WriteCloser // it ends with it
	output *bufio.Reader
	errs   bytes.Buffer
}

// Start starts a cluster, which ends with the test. A cluster that runs for another test is waited for.
func Start(t testing.TB, kind Kind, o Options) *Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-testbed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("logs of the cluster are in %s", filepath.Join(dir, "log"))
		} else if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, err := Open(kind, dir, o, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Open is Start outside of tests: the cluster runs until Close, with data and logs in an empty directory, which it does
// not remove. It reports the building of programs as progress.
func Open(kind Kind, dir string, o Options, progress func(format string, args ...any)) (*Cluster, error) {
	wanted := parts[kind]
	if o.Peers {
		wanted = slices.Concat(wanted, peerParts)
	}
	bin, err := build(wanted, progress)
	if err != nil {
		return nil, err
	}
	programs := filepath.Join(dir, "programs")
	for _, name := range []string{"cluster", "pod"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(programs, name), "mete.dev/mete/internal/testkit/testbed/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build: %w\n%s", err, out)
		}
	}
	args := []string{"-kind", string(kind), "-bin", bin, "-dir", dir, "-nodes", fmt.Sprint(o.Nodes), fmt.Sprintf("-peers=%t", o.Peers)}
	for _, ref := range []string{"mete.test/pause:1", PodImage} {
		args = append(args, "-image", ref+"="+filepath.Join(programs, "pod"))
	}
	for ref, program := range o.Images {
		args = append(args, "-image", ref+"="+program)
	}
	c := &Cluster{Logs: filepath.Join(dir, "log"), kubectl: filepath.Join(bin, "kubectl"), cmd: exec.Command(filepath.Join(programs, "cluster"), args...)}
	c.cmd.Stderr = &c.errs
	var out io.Reader
	if c.input, err = c.cmd.StdinPipe(); err == nil {
		out, err = c.cmd.StdoutPipe()
	}
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	c.output = bufio.NewReader(out)
	line, err := c.output.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the cluster did not start: %w", err), c.Close())
	}
	c.Kubeconfig = strings.TrimSpace(line)
	return c, nil
}

// RestartAPI kills the API server and starts it again, which takes some seconds: it knows no changes of before, so that
// watches expire.
func (c *Cluster) RestartAPI() error {
	if _, err := fmt.Fprintln(c.input, "kube-apiserver"); err != nil {
		return err
	}
	_, err := c.output.ReadString('\n')
	return err
}

// Close stops a cluster that [Open] started.
func (c *Cluster) Close() error {
	_ = c.input.Close() // it may have ended
	err := c.cmd.Wait()
	if c.errs.Len() > 0 {
		err = errors.Join(err, errors.New(c.errs.String()))
	}
	if err != nil {
		return fmt.Errorf("the cluster: %w", err)
	}
	return nil
}

// Helm runs Helm as an administrator, and returns its output. The first time builds it, which takes minutes.
func (c *Cluster) Helm(t testing.TB, args ...string) string {
	t.Helper()
	if _, err := build(helmParts, t.Logf); err != nil {
		t.Fatal(err)
	}
	out, err := c.TryHelm(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TryHelm is Helm, after its first use, for commands that may fail.
func (c *Cluster) TryHelm(args ...string) (string, error) {
	return run(exec.Command(c.Program("helm"), append([]string{"--kubeconfig", c.Kubeconfig}, args...)...))
}

// Program returns the path of one of the cluster's programs, such as kubectl.
func (c *Cluster) Program(name string) string { return filepath.Join(filepath.Dir(c.kubectl), name) }

// CAdvisor returns the URL of the metrics of cAdvisor on node 1 or 2, in a cluster with peers.
func (*Cluster) CAdvisor(node int) string {
	return fmt.Sprintf("http://10.99.0.%d:8080/metrics", 10+node)
}

// Processes returns the PIDs of the processes that run one of the cluster's programs.
func (c *Cluster) Processes(name string) (pids []int, err error) {
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return nil, err
	}
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != c.Program(name) { // it may have ended
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kubectl runs kubectl as an administrator, with an input, and returns its output.
func (c *Cluster) Kubectl(t testing.TB, input string, args ...string) string {
	t.Helper()
	out, err := c.Try(input, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Try is Kubectl for commands that may fail.
func (c *Cluster) Try(input string, args ...string) (string, error) {
	cmd := exec.Command(c.kubectl, append([]string{"--kubeconfig", c.Kubeconfig, "--request-timeout", time.Minute.String()}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	return run(cmd)
}

// run runs a command and returns its output.
func run(cmd *exec.Cmd) (string, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, &errs)
	}
	return string(out), nil
}
