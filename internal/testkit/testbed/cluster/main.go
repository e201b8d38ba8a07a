// Command cluster runs a Kubernetes cluster on this machine, for tests and to try things:
//
//	cluster -kind api|sim|real -bin DIR -dir DIR [-nodes N] [-peers] [-image REF=PROGRAM]...
//
// It prints one line, the path of the administrator's kubeconfig, when the cluster is ready. When its standard
// input ends, or it is interrupted, it stops the cluster and removes what it made. One cluster can run on a
// machine at a time; what one left that was killed is removed at the next start.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	runtime.LockOSThread() // see processes and enter
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	switch {
	case len(args) > 9 && args[0] == "enter":
		return enter(args[1], args[2:8], args[9:])
	case len(args) == 6 && args[0] == "boot":
		return boot(args[1], args[2], args[3], args[4], args[5] == "true")
	}
	f := flag.NewFlagSet("cluster", flag.ExitOnError)
	kind := f.String("kind", "real", "api (objects can be created, nothing runs), sim (nodes that kwok simulates) or real (two nodes)")
	bin := f.String("bin", "", "the `directory` of the programs of Kubernetes")
	dir := f.String("dir", "", "an empty `directory` for data and logs")
	nodes := f.Int("nodes", 10, "how many nodes are simulated")
	peers := f.Bool("peers", false, "also run what others measure pods with: cAdvisor on each real node, and metrics-server")
	var images []string
	f.Func("image", "name and program of an image for the nodes, as `REF=PROGRAM`, or its archive, as REF=PATH.tar, absolute; may be repeated", func(s string) error {
		images = append(images, s)
		return nil
	})
	// With ExitOnError it returns no error.
	_ = f.Parse(args)
	if *bin == "" || *dir == "" || *kind != "api" && *kind != "sim" && *kind != "real" {
		return errors.New("-kind is api, sim or real; -bin and -dir must be given")
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	stopped := make(chan os.Signal, 1)
	signal.Notify(stopped, syscall.SIGINT, syscall.SIGTERM)
	// Each line of the input is a program to restart; the cluster ends with the input.
	restarts := make(chan string)
	go func() {
		defer close(restarts)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			restarts <- lines.Text()
		}
	}()
	c := &cluster{bin: *bin, dir: *dir, peers: *peers, processes: processes{logs: filepath.Join(*dir, "log"), ended: make(chan string, 16)}}
	list := []node{{"node1", 1}, {"node2", 2}}
	if *kind != "real" {
		list = nil
	}
	defer c.remove()
	c.removeNodes()
	if err := c.up(*kind, list, *nodes, images); err != nil {
		return err
	}
	fmt.Println(c.path("admin.kubeconfig"))
	for {
		select {
		case <-stopped:
			return nil
		case name, ok := <-restarts:
			if !ok {
				return nil
			}
			if err := errors.Join(c.restart(name), c.serves()); err != nil {
				return err
			}
			fmt.Println(name)
		case why := <-c.ended:
			return errors.New(why)
		}
	}
}

// lock makes sure that one cluster runs at a time.
func lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "mete-testbed.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil // the lock ends with it
}

// up starts the cluster.
func (c *cluster) up(kind string, nodes []node, simulated int, images []string) (err error) {
	for _, d := range []string{"pki", "log", "images"} {
		if err := os.MkdirAll(c.path(d), 0o755); err != nil {
			return err
		}
	}
	if c.port, err = freePort(); err != nil {
		return err
	}
	for i, s := range images {
		ref, program, _ := strings.Cut(s, "=")
		archive := c.path("images", fmt.Sprintf("%d.tar", i))
		if strings.HasSuffix(program, ".tar") {
			err = os.Symlink(program, archive)
		} else {
			err = writeImage(archive, ref, program)
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", ref, err)
		}
	}
	if err := c.identities(nodes); err != nil {
		return err
	}
	if len(nodes) > 0 {
		if err := makeBridge(); err != nil {
			return err
		}
	}
	if err := c.startAPI(len(nodes) > 0); err != nil {
		return err
	}
	if kind == "api" {
		return nil
	}
	if err := c.startControllers(); err != nil {
		return err
	}
	if kind == "sim" {
		return c.startSimulated(simulated)
	}
	for _, n := range nodes {
		if err := n.connect(nodes); err != nil {
			return err
		}
		if err := c.startNode(n); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := wait(90*time.Second, func() error { return c.ready(n.name) }); err != nil {
			return fmt.Errorf("node %s: %w", n.name, err)
		}
	}
	if c.peers {
		return c.startMetrics()
	}
	return nil
}

// ready returns nil if a node is ready.
func (c *cluster) ready(node string) error {
	select {
	case why := <-c.ended:
		c.ended <- why
		return errors.New(why)
	default:
	}
	b, err := c.get("/api/v1/nodes/" + node)
	if err != nil {
		return err
	}
	var n struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return err
	}
	for _, k := range n.Status.Conditions {
		if k.Type == "Ready" {
			if k.Status == "True" {
				return nil
			}
			return errors.New(k.Message)
		}
	}
	return errors.New("not registered")
}

// remove stops all programs and removes what they and this one made, except the logs.
func (c *cluster) remove() {
	c.stop()
	c.removeNodes()
	for _, d := range []string{"etcd", "pki", "images", "node1", "node2"} {
		if err := os.RemoveAll(c.path(d)); err != nil {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
	}
}

// removeNodes removes the groups and the network of nodes, also those of an earlier cluster.
func (c *cluster) removeNodes() {
	if err := removeGroups(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
	}
	removeNetwork([]node{{"node1", 1}, {"node2", 2}})
}
