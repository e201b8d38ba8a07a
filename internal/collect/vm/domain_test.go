package vm_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/collect/vm"
)

// Command lines in the forms of different programs: the relevant options, and some to
// ignore.
var commandLines = []struct {
	name, args string // arguments in lines
	want       vm.Domain
}{
	{"libvirt 9", `/usr/bin/qemu-system-x86_64
-name
guest=web-1,debug-threads=on
-S
-object
{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/qemu/domain-3-web-1/master-key.aes"}
-machine
pc-q35-7.2,usb=off,vmport=off,dump-guest-core=off,memory-backend=pc.ram
-accel
kvm
-cpu
host,migratable=on
-m
size=4194304k
-overcommit
mem-lock=off
-smp
4,sockets=1,dies=1,cores=4,threads=1
-uuid
0F6BD2E2-8E9A-4F8A-9B4E-2A6F0A3C7D11
-no-user-config
-nodefaults
-chardev
socket,id=charmonitor,fd=35,server=on,wait=off
-mon
chardev=charmonitor,id=monitor,mode=control
-rtc
base=utc,driftfix=slew
-no-shutdown
-boot
strict=on
-blockdev
{"driver":"file","filename":"/var/lib/libvirt/images/-uuid","node-name":"libvirt-1-storage"}
-device
{"driver":"virtio-blk-pci","bus":"pci.4","addr":"0x0","drive":"libvirt-1-format","id":"virtio-disk0","bootindex":1}
-device
{"driver":"vhost-vsock-pci","id":"vsock0","guest-cid":7,"vhostfd":"38","bus":"pci.6","addr":"0x0"}
-msg
timestamp=on`,
		vm.Domain{Name: "web-1", UUID: "0f6bd2e2-8e9a-4f8a-9b4e-2a6f0a3c7d11", CID: 7, VCPUs: 4, MaxVCPUs: 4,
			Monitor: vm.Monitor{Why: "libvirt holds its QMP monitor"}}},
	{"libvirt 7, a CPU added while it runs", `/usr/libexec/qemu-kvm
-name
guest=db,debug-threads=on
-smp
1,maxcpus=6,sockets=3,dies=1,cores=2,threads=1
-uuid
c7a5fdbd-edaf-9455-926a-d65c16db1809
-smbios
type=1,manufacturer=Red Hat,product=OpenStack Compute,uuid=11111111-2222-3333-4444-555555555555,family=Virtual Machine
-chardev
socket,id=charmonitor,path=/var/lib/libvirt/qemu/domain-1-db/monitor.sock,server,nowait
-mon
chardev=charmonitor,id=monitor,mode=control
-device
vhost-vsock-pci,id=vsock0,guest-cid=42,vhostfd=31,bus=pci.0,addr=0x2
-device
host-x86_64-cpu,id=vcpu2,socket-id=1,die-id=0,core-id=0,thread-id=0`,
		vm.Domain{Name: "db", UUID: "c7a5fdbd-edaf-9455-926a-d65c16db1809", CID: 42, VCPUs: 2, MaxVCPUs: 6,
			Monitor: vm.Monitor{Why: "libvirt holds its QMP monitor"}}},
	{"libvirt with a second monitor", `/usr/bin/qemu-system-x86_64
-name
guest=b,debug-threads=on
-smp
2
-chardev
socket,id=charmonitor,fd=35,server=on,wait=off
-mon
chardev=charmonitor,id=monitor,mode=control
-qmp
unix:/run/b.qmp,server=on,wait=off`,
		vm.Domain{Name: "b", VCPUs: 2, MaxVCPUs: 2, Monitor: vm.Monitor{Path: "/run/b.qmp"}}},
	{"Proxmox", `/usr/bin/kvm
-id
100
-name
mail,debug-threads=on
-no-shutdown
-chardev
socket,id=qmp,path=/var/run/qemu-server/100.qmp,server=on,wait=off
-mon
chardev=qmp,mode=control
-chardev
socket,id=qmp-event,path=/var/run/qmeventd.sock,reconnect=5
-mon
chardev=qmp-event,mode=control
-pidfile
/var/run/qemu-server/100.pid
-daemonize
-smbios
type=1,uuid=3b0f1d3c-5a0e-4a4e-9d2f-7e0a4a1b2c3d
-smp
8,sockets=2,cores=4,maxcpus=8
-nodefaults
-vnc
unix:/var/run/qemu-server/100.vnc,password=on
-cpu
kvm64,enforce,+kvm_pv_eoi,+kvm_pv_unhalt,+lahf_lm,+sep`,
		vm.Domain{Name: "mail", UUID: "3b0f1d3c-5a0e-4a4e-9d2f-7e0a4a1b2c3d", VCPUs: 8, MaxVCPUs: 8,
			Monitor: vm.Monitor{Path: "/var/run/qemu-server/100.qmp"}}},
	{"by hand, two dashes", `qemu-system-x86_64
--enable-kvm
--name
try,process=tryvm
--smp
cpus=2,maxcpus=4
--device
vhost-vsock-pci,guest-cid=0x10
--qmp
unix:q.sock,server,nowait
disk.img`,
		vm.Domain{Name: "try", CID: 16, VCPUs: 2, MaxVCPUs: 4, Monitor: vm.Monitor{Path: "q.sock"}}},
	{"only a kernel, whose arguments look like options", `qemu-system-aarch64
-nographic
-kernel
Image
-append
-name
-serial
stdio`,
		vm.Domain{VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "it has no QMP monitor"}}},
	{"topology only", `qemu-system-x86_64
-smp
sockets=2,cores=4,threads=2`,
		vm.Domain{VCPUs: 16, MaxVCPUs: 16, Monitor: vm.Monitor{Why: "it has no QMP monitor"}}},
	{"CPUs of the machine", `qemu-system-x86_64
-M
q35,smp.cpus=3,smp.maxcpus=12`,
		vm.Domain{VCPUs: 3, MaxVCPUs: 12, Monitor: vm.Monitor{Why: "it has no QMP monitor"}}},
	{"the name has commas, the UUID is all zeros, the CID is the host's", `qemu-system-x86_64
-name
guest=a,,b,debug-threads=on
-uuid
00000000-0000-0000-0000-000000000000
-device
vhost-vsock-ccw,guest-cid=2
-qmp
tcp:127.0.0.1:4444,server=on`,
		vm.Domain{Name: "a,b", VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "its QMP monitor is not a unix socket"}}},
	{"a name with terminal control codes", "qemu-system-x86_64\n-name\na\x1b[2J",
		vm.Domain{Name: `a\x1b[2J`, VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "it has no QMP monitor"}}},
	{"a monitor that is a client", `qemu-system-x86_64
-chardev
socket,id=m,path=/run/m.sock,reconnect=1
-mon
m,mode=control
-monitor
unix:/run/hmp.sock,server=on`,
		vm.Domain{VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "its QMP monitor is a client, not a server"}}},
	{"everything in JSON", `qemu-system-x86_64
-name
{"guest":"j","debug-threads":true}
-smp
{"cpus":2,"maxcpus":4}
-chardev
{"id":"m","backend":{"type":"socket","data":{"addr":{"type":"unix","data":{"path":"/run/j.qmp"}},"server":true,"wait":false}}}
-mon
{"chardev":"m","mode":"control"}`,
		vm.Domain{Name: "j", VCPUs: 2, MaxVCPUs: 4, Monitor: vm.Monitor{Path: "/run/j.qmp"}}},
	{"a monitor handed over", `qemu-system-x86_64
-chardev
socket,id=m,fd=9,server=on
-qmp
chardev:m`,
		vm.Domain{VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "its QMP monitor is held by what started it"}}},
	{"broken", `qemu-system-x86_64
-smp
-4,maxcpus=x
-uuid
not-a-uuid
-device
{"driver":"vhost-vsock-pci","guest-cid":
-name`,
		vm.Domain{VCPUs: 1, MaxVCPUs: 1, Monitor: vm.Monitor{Why: "it has no QMP monitor"}}},
}

func TestParse(t *testing.T) {
	for _, c := range commandLines {
		t.Run(c.name, func(t *testing.T) {
			got := vm.Parse(argv(c.args))
			if got.Monitor.Path == "" && got.Monitor.Hint == "" {
				t.Error("no monitor and no hint")
			}
			got.Monitor.Hint = ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

// argv converts lines to the format of /proc/PID/cmdline.
func argv(lines string) []byte { return []byte(strings.ReplaceAll(lines, "\n", "\x00") + "\x00") }

// Any command line gives a domain that is printable and within limits.
func FuzzParse(f *testing.F) {
	for _, c := range commandLines {
		f.Add(argv(c.args))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := vm.Parse(b)
		if d.VCPUs < 1 || d.MaxVCPUs < d.VCPUs || d.MaxVCPUs > 1<<16 {
			t.Errorf("%d CPUs of %d", d.VCPUs, d.MaxVCPUs)
		}
		if d.UUID != "" && (len(d.UUID) != 36 || strings.ToLower(d.UUID) != d.UUID) {
			t.Errorf("UUID %q", d.UUID)
		}
		if d.CID != 0 && d.CID < 3 || d.CID == 1<<32-1 {
			t.Errorf("CID %d", d.CID)
		}
		if !utf8.ValidString(d.Name) || strings.ContainsFunc(d.Name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Errorf("name %q", d.Name)
		}
		if (d.Monitor.Path == "") != (d.Monitor.Why != "") {
			t.Errorf("monitor %+v", d.Monitor)
		}
	})
}
