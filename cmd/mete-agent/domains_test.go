package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
)

// domainOf is a virtual machine that emulates its CPU, has no disk and needs no KVM.
const domainOf = `<domain type='qemu'><name>%s</name>%s<memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices><emulator>/usr/bin/qemu-system-x86_64</emulator></devices></domain>`

// novaOf is the metadata that OpenStack's Nova writes, of an instance, a flavor, a user and a project.
const novaOf = `<metadata><nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1"><nova:name>%s</nova:name><nova:flavor name=%q><nova:vcpus>1</nova:vcpus></nova:flavor>
<nova:owner><nova:user uuid="8d6c2f6e0f4b4a6c9e0d1b2a3c4d5e6f">%s</nova:user><nova:project uuid="1f0e2d3c4b5a69788796a5b4c3d2e1f0">%s</nova:project></nova:owner></nova:instance></metadata>`

// A hypervisor is a daemon of libvirt in a mount namespace of its own, which has its state in a directory.
type hypervisor struct {
	*site
	dir    string
	daemon *program
}

// newHypervisor starts a daemon that runs QEMU as root, without the services of a whole installation.
func newHypervisor(t *testing.T) *hypervisor {
	h := &hypervisor{site: newSite(t)}
	h.dir = filepath.Join(h.site.dir, "libvirt")
	for _, d := range []string{"etc", "run", "lib", "log", "cache"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"qemu.conf":     "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\nstdio_handler = \"file\"\ncgroup_controllers = [ \"cpu\", \"cpuacct\", \"memory\" ]\n",
		"libvirtd.conf": "auth_unix_rw = \"none\"\n",
	} {
		if err := os.WriteFile(filepath.Join(h.dir, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The user and the group are those that the package libvirt-daemon-system makes.
	const script = `
(cat /etc/passwd; echo libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin) >$1/passwd
(cat /etc/group; echo libvirt-qemu:x:64055:; echo kvm:x:64056:) >$1/group
mount --bind $1/passwd /etc/passwd && mount --bind $1/group /etc/group || exit 1
mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
mount --bind $1/etc /etc/libvirt && mount --bind $1/run /run/libvirt && mount --bind $1/lib /var/lib/libvirt &&
mount --bind $1/log /var/log/libvirt && mount --bind $1/cache /var/cache/libvirt && exec libvirtd`
	h.daemon = h.start("libvirtd", exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", h.dir))
	t.Cleanup(func() { // machines outlive their daemon
		for name := range strings.FieldsSeq(h.virsh("", "list", "--uuid")) {
			h.virsh("", "destroy", name)
		}
		dirs, err := filepath.Glob("/sys/fs/cgroup/*/machine")
		for _, d := range append(dirs, "/sys/fs/cgroup/machine") {
			_ = os.Remove(d) // one that another daemon uses stays
		}
		if err != nil {
			t.Error(err)
		}
	})
	h.daemon.await("the daemon's answer", func() bool { return h.client("", "version").Run() == nil })
	return h
}

// client is a command of virsh.
func (h *hypervisor) client(input string, args ...string) *exec.Cmd {
	c := exec.Command("nsenter", append([]string{"-t", fmt.Sprint(h.daemon.cmd.Process.Pid), "-m", "virsh", "-q", "-c", "qemu:///system"}, args...)...)
	c.Stdin = strings.NewReader(input)
	return c
}

func (h *hypervisor) virsh(input string, args ...string) string {
	h.t.Helper()
	var out, err bytes.Buffer
	c := h.client(input, args...)
	c.Stdout, c.Stderr = &out, &err
	if e := c.Run(); e != nil {
		h.t.Fatalf("%v: %v\n%s", c.Args, e, &err)
	}
	return out.String()
}

func (h *hypervisor) create(name, more string) {
	h.t.Helper()
	h.virsh(fmt.Sprintf(domainOf, name, more), "create", "/dev/stdin")
}

// TestDomains measures virtual machines of a real libvirt: they have the names and owners of OpenStack, or their titles,
// or the names of their domains, also after a change, after their end and after a restart of the agent. Under an agent that
// does not read them they have the names of their groups.
func TestDomains(t *testing.T) {
	testkit.Stage(t, "vm", "runs libvirt and its virtual machines")
	hosttest.Need(t, "root", "bpf", "qemu", "libvirt", "unshare")
	h := newHypervisor(t)
	h.serve()
	h.token = h.site.run("token", "create", "--role", "agent")
	directory := filepath.Join(h.dir, "run", "qemu")
	h.measure("-reader", "bpf", "-libvirt", directory)

	h.create("instance-0000001a", fmt.Sprintf(novaOf, "web-1", "m1.small", "alice", "shop"))
	h.create("instance-0000001b", fmt.Sprintf(novaOf, "web-1", "m1.small", "bob", "lab"))
	h.create("db.example.org", "<title>Database &amp; cache</title>")
	h.create("my machine:2", "") // its group is qemu-4-mymachine2
	names := func() map[string]string {
		t.Helper()
		out := h.site.run("usage", "--from", "-1h", "--by", "workload,user,project,label:domain,label:flavor", "--where", "kind=vm", "-o", "json", "--server", h.url, "--token", h.viewer)
		var a struct{ Groups []map[string]any }
		if err := json.Unmarshal([]byte(out), &a); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		named := map[string]string{}
		for _, g := range a.Groups {
			if cpu, _ := g["cpu_seconds"].(float64); cpu > 0 {
				named[fmt.Sprint(g["label:domain"])] = fmt.Sprintf("%v of %v in %v, %v", g["workload"], g["user"], g["project"], g["label:flavor"])
			}
		}
		return named
	}
	want := map[string]string{"instance-0000001a": "web-1 of alice in shop, m1.small", "instance-0000001b": "web-1 of bob in lab, m1.small",
		"db.example.org": "Database & cache of  in , ", "my machine:2": "my machine:2 of  in , "}
	expect := func(what string) {
		t.Helper()
		var got map[string]string
		defer func() { t.Logf("%s: %v", what, got) }()
		h.node.await(what, func() bool { got = names(); return maps.Equal(got, want) })
	}
	expect("their names")
	h.virsh("", "desc", "my machine:2", "--live", "--title", "Build machine")
	want["my machine:2"] = "Build machine of  in , "
	expect("a new title")
	h.virsh("", "destroy", "instance-0000001a")
	h.waitStored()
	expect("the names after an end")
	h.node.stop()
	h.measure("-reader", "bpf", "-libvirt", directory)
	h.waitStored()
	expect("the names under the next agent")
	h.node.stop()
	h.measure("-reader", "bpf", "-libvirt", "none")
	h.create("later", "<title>Not read</title>")
	h.node.await("a machine that is not read", func() bool {
		return strings.Contains(h.site.run("usage", "--from", "-1h", "--by", "workload", "--where", "kind=vm", "--server", h.url, "--token", h.viewer), "later ")
	})
	h.node.stop()
}
