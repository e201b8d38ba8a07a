package libvirt

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/workload"
)

// captured is the file of a domain of libvirt 9.0, with the metadata that Nova writes.
func captured(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/instance-0000001a.xml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const (
	capturedUUID  = "5f9f5ad4-1b88-49ed-af9f-995cc0ade552"
	capturedPID   = 28201
	capturedUser  = "8d6c2f6e0f4b4a6c9e0d1b2a3c4d5e6f"
	capturedGroup = "/machine/qemu-1-instance-0000001a.libvirt-qemu"
)

// without cuts what is between two texts out of a text, them included.
func without(t *testing.T, s, from, to string) string {
	t.Helper()
	before, rest, ok := strings.Cut(s, from)
	_, after, found := strings.Cut(rest, to)
	if !ok || !found {
		t.Fatalf("no %q to %q", from, to)
	}
	return before + after
}

// TestParse checks what is kept of a file: names and owners, of OpenStack before others, within limits.
func TestParse(t *testing.T) {
	file := captured(t)
	untitled := without(t, without(t, file, "<metadata>", "</metadata>"), "<title>", "</title>")
	own := Domain{Name: "instance-0000001a", Labels: map[string]string{LabelDomain: "instance-0000001a"}}
	titled := own
	titled.Name = "Web server of the shop"
	nova := Domain{Name: "web-1", User: "alice", Project: "shop", Labels: map[string]string{LabelDomain: "instance-0000001a", LabelFlavor: "m1.small", LabelProjectID: "1f0e2d3c4b5a69788796a5b4c3d2e1f0", LabelUserID: capturedUser}}
	unnamed := nova
	unnamed.User, unnamed.Project = capturedUser, nova.Labels[LabelProjectID]
	long := own
	long.Name = strings.Repeat("é", maxText/2)
	foreign := nova
	foreign.Name, foreign.User, foreign.Project, foreign.Labels = titled.Name, "", "", own.Labels
	for name, c := range map[string]struct {
		file string
		want Domain
	}{
		"of OpenStack":                 {file, nova},
		"of an OpenStack of before":    {strings.ReplaceAll(file, "nova/1.1", "nova/1.0"), nova},
		"with a prefix of another one": {strings.ReplaceAll(strings.ReplaceAll(file, "nova:", "n:"), "xmlns:nova", "xmlns:n"), nova},
		"with metadata of another one": {strings.ReplaceAll(file, "openstack.org", "example.org"), foreign},
		"of owners without names":      {strings.NewReplacer(">alice<", ">N/A<", ">shop<", ">N/A<").Replace(file), unnamed},
		"with a title":                 {without(t, file, "<metadata>", "</metadata>"), titled},
		"without":                      {untitled, own},
		"with a title of white space":  {strings.Replace(untitled, "<memory", "<title> \n </title><memory", 1), own},
		"with a long title":            {strings.Replace(untitled, "<memory", "<title>"+strings.Repeat("é", 200)+"</title><memory", 1), long},
	} {
		got, err := parse([]byte(c.file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if d := cmp.Diff(c.want, *got, cmpopts.IgnoreUnexported(Domain{})); d != "" || got.uuid != capturedUUID || got.pid != capturedPID {
			t.Errorf("%s (-want +got): %s of process %d, %s", name, d, got.pid, got.uuid)
		}
	}
	for name, bad := range map[string]string{
		"empty": "", "cut": file[:len(file)/2], "of no process": strings.Replace(file, "pid='28201'", "", 1), "of a process below 1": strings.Replace(file, "pid='28201'", "pid='-1'", 1),
		"no domain": "<domstatus pid='1'/>", "a network": "<networkstatus pid='1'/>", "without UUID": strings.ReplaceAll(file, capturedUUID, ""),
		"with an entity": strings.NewReplacer("<domstatus", "<!DOCTYPE d [<!ENTITY e SYSTEM 'file:///etc/passwd'>]><domstatus", ">web-1<", ">&e;<").Replace(file),
	} {
		if d, err := parse([]byte(bad)); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	var n batch.Name
	nova.Apply(&n)
	if d := cmp.Diff(batch.Name{Name: "web-1", User: "alice", Project: "shop", Labels: nova.Labels}, n); d != "" {
		t.Errorf("the workload (-want +got): %s", d)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(captured(f)))
	f.Add([]byte("<domstatus pid='1'><domain><name>a</name><uuid>" + capturedUUID + "</uuid></domain></domstatus>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parse(b)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) {
				t.Error(err)
			}
			return
		}
		texts := []string{d.User, d.Project}
		for _, v := range d.Labels {
			texts = append(texts, v)
		}
		for _, text := range append(texts, d.Name) {
			if len(text) > maxText {
				t.Errorf("%d bytes", len(text))
			}
		}
		if d.Name == "" || d.pid <= 0 || len(d.Labels) > 4 {
			t.Errorf("%+v", d)
		}
	})
}

// A host has the files of domains and processes that a Reader reads.
type host struct {
	*testing.T
	*Reader
	root string
	log  bytes.Buffer
}

func newHost(t *testing.T) *host {
	h := &host{T: t}
	h.root = t.TempDir()
	clocks := filepath.Join(h.root, "mete", "clocks") // it is a captured machine
	if err := errors.Join(os.Mkdir(filepath.Dir(clocks), 0o700), os.Mkdir(h.root+"/proc", 0o700), os.WriteFile(clocks, []byte("boottime 30\nmonotonic 20\nrealtime 1000\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	root, err := hostfs.Open(h.root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	h.Reader = New(root, t.TempDir(), time.Minute, slog.New(slog.NewTextHandler(&h.log, nil)))
	return h
}

// put writes a file of a domain as libvirt does: it replaces it.
func (h *host) put(name, content string) {
	h.Helper()
	tmp := filepath.Join(h.dir, "new")
	if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, filepath.Join(h.dir, name))); err != nil {
		h.Fatal(err)
	}
}

// process puts a process into a group.
func (h *host) process(pid int, uuid, group string) {
	h.Helper()
	dir := filepath.Join(h.root, "proc", fmt.Sprint(pid))
	cgroup := "9:name=systemd:/\n2:cpuacct:/\n1:cpu:" + group + "\n0::/\n"
	err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(dir+"/cmdline", []byte("qemu\x00-uuid\x00"+uuid+"\x00"), 0o600), os.WriteFile(dir+"/cgroup", []byte(cgroup), 0o600))
	if err != nil {
		h.Fatal(err)
	}
}

// find looks for the domain in a group after the files were due.
func (h *host) find(group string) *Domain {
	time.Sleep(scanInterval)
	return h.Find(workload.VM, group, true)
}

// TestFind follows a domain from its start to its end, on files that only root can write and on others.
func TestFind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, file := newHost(t), captured(t)
		if d := h.find(capturedGroup); d != nil || h.log.Len() > 0 {
			t.Fatalf("before it starts: %+v, %s", d, &h.log)
		}
		h.put("instance-0000001a.xml", file)
		h.put("autostarted", "")
		if d := h.find(capturedGroup); d != nil {
			t.Errorf("without its process: %+v", d)
		}
		h.process(capturedPID, capturedUUID, capturedGroup+"/emulator")
		first := h.find(capturedGroup)
		if first == nil || first.Name != "web-1" {
			t.Fatalf("%+v", first)
		}
		for name, group := range map[string]string{"a part of its group": capturedGroup + "/emulator", "the group above": "/machine", "another one": "/machine/qemu-2-x.libvirt-qemu", "the root": "/"} {
			if d := h.find(group); d != nil {
				t.Errorf("%s: %+v", name, d)
			}
		}
		if d := h.Find(workload.Container, capturedGroup, true); d != nil {
			t.Errorf("a container: %+v", d)
		}
		h.put("instance-0000001a.xml", file) // with another inode, and nothing else
		if d := h.find(capturedGroup); d != first {
			t.Errorf("written again: %+v", d)
		}
		h.put("instance-0000001a.xml", strings.Replace(file, ">web-1<", ">web-2<", 1))
		if d := h.Find(workload.VM, capturedGroup, true); d != first {
			t.Errorf("within a scan interval: %+v", d)
		}
		if d := h.find(capturedGroup); d == nil || d.Name != "web-2" || first.Name != "web-1" {
			t.Errorf("renamed: %+v", d)
		}
		rows := []live.Row{{Kind: workload.VM, Path: capturedGroup, Name: "x"}, {Kind: workload.VM, Path: "/y", Name: "y"}}
		h.Name(rows)
		if rows[0].Name != "web-2" || rows[0].User != "alice" || rows[0].Project != "shop" || rows[1].Name != "y" {
			t.Errorf("rows: %+v", rows)
		}
		if name, ok := h.DisplayName(&workload.Workload{Kind: workload.VM, Path: capturedGroup}); name != "web-2" || !ok {
			t.Errorf("name %q", name)
		}
		if h.log.Len() > 0 {
			t.Errorf("logged: %s", &h.log)
		}
		// Its process ended, and its number is that of one in the group of another domain, or of another one there.
		h.process(capturedPID, "00000000-0000-0000-0000-000000000001", "/machine/qemu-2-x.libvirt-qemu")
		if d := h.find("/machine/qemu-2-x.libvirt-qemu"); d != nil {
			t.Errorf("with its number: %+v", d)
		}
		if err := os.Remove(filepath.Join(h.dir, "instance-0000001a.xml")); err != nil {
			t.Fatal(err)
		}
		if d := h.find(capturedGroup); d == nil || d.Name != "web-2" {
			t.Errorf("just after its end: %+v", d)
		}
		time.Sleep(time.Minute)
		if d := h.find(capturedGroup); d != nil {
			t.Errorf("a minute after its end: %+v", d)
		}
	})
}

// TestFiles checks that files that others than root could have written, or that are none of a domain, name nothing, that
// the log says so once, and that other files count.
func TestFiles(t *testing.T) {
	file := captured(t)
	for name, spoil := range map[string]func(path string) error{
		"others can write it": func(path string) error { return os.Chmod(path, 0o602) },
		"its group can":       func(path string) error { return os.Chmod(path, 0o620) },
		"a link": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
		"a directory": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"no XML":      func(path string) error { return os.WriteFile(path, []byte("<domstatus"), 0o600) },
		"too large":   func(path string) error { return os.WriteFile(path, []byte(file+strings.Repeat(" ", maxBytes)), 0o600) },
		"of another user": func(path string) error {
			if os.Geteuid() != 0 {
				return os.Chmod(path, 0o602)
			}
			return os.Chown(path, 1000, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				h.process(capturedPID, capturedUUID, capturedGroup)
				h.process(7, "00000000-0000-0000-0000-000000000007", "/machine.slice/machine-qemu\\x2d2\\x2ddb.scope/libvirt/emulator")
				h.put("instance-0000001a.xml", file)
				h.put("db.xml", strings.NewReplacer("'28201'", "'7'", capturedUUID, "00000000-0000-0000-0000-000000000007", "web-1", "db-1").Replace(file))
				if err := spoil(filepath.Join(h.dir, "instance-0000001a.xml")); err != nil {
					t.Fatal(err)
				}
				for i := range 4 {
					if d := h.find(capturedGroup); d != nil {
						t.Errorf("%+v", d)
					}
					if at := time.Unix(int64(i/2), 0); os.Chtimes(filepath.Join(h.dir, "instance-0000001a.xml"), at, at) != nil {
						t.Error("the file does not change")
					}
				}
				if d := h.find("/machine.slice/machine-qemu\\x2d2\\x2ddb.scope"); d == nil || d.Name != "db-1" {
					t.Errorf("the other one: %+v", d)
				}
				if n := strings.Count(h.log.String(), "level=WARN"); n != 1 || !strings.Contains(h.log.String(), "instance-0000001a.xml") {
					t.Errorf("logged %d times: %s", n, &h.log)
				}
			})
		})
	}
}

// TestNone checks that nothing is read if that was chosen.
func TestNone(t *testing.T) {
	r := New(nil, None, time.Minute, slog.New(slog.DiscardHandler))
	r.Name([]live.Row{{Kind: workload.VM}})
	if d := r.Find(workload.VM, capturedGroup, true); d != nil || r != nil {
		t.Errorf("%+v", d)
	}
	for path, ok := range map[string]bool{None: true, Directory: true, "": false, "run/libvirt": false} {
		if err := CheckDirectory(path); (err == nil) != ok || err != nil && (!errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "") {
			t.Errorf("%q: %v", path, err)
		}
	}
}
