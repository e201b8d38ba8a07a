package capture_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"mete.dev/mete/internal/app/capture"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/hosttest"
)

// take captures a machine.
func take(t *testing.T, h *hostfs.FS, cfg capture.Config) (text, summary string) {
	t.Helper()
	m, err := capture.Take(t.Context(), h, cfg, []byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.String(), m.Summary()
}

// files returns all files of a machine by path, with those of later ticks separate.
func files(t *testing.T, h *hostfs.FS) map[string]string {
	t.Helper()
	all := map[string]string{}
	root := h.Path("/")
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil || strings.HasPrefix(name, "tick") {
			return err
		}
		b, err := os.ReadFile(p)
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestRoundTrip checks that the capture of a captured machine has the same hierarchies, groups and
// figures.
func TestRoundTrip(t *testing.T) {
	for _, name := range hosttest.Names(t) {
		t.Run(name, func(t *testing.T) {
			h := hosttest.Open(t, name)
			text, _ := take(t, h, capture.Default())
			again := hosttest.Unpack(t, []byte(text))
			want, err := h.Hierarchies()
			if err != nil {
				t.Fatal(err)
			}
			got, err := again.Hierarchies()
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got, cmpopts.IgnoreFields(hostfs.Hierarchy{}, "Self")); d != "" {
				t.Errorf("hierarchies (-want +got):\n%s", d)
			}
			if d := cmp.Diff(figures(files(t, h)), figures(files(t, again))); d != "" {
				t.Errorf("files (-want +got):\n%.3000s", d)
			}
			for _, read := range []func(*hostfs.FS) (any, error){
				func(h *hostfs.FS) (any, error) { return h.Clocks() },
				func(h *hostfs.FS) (any, error) { return h.StackedMajors() },
				func(h *hostfs.FS) (any, error) { return h.LeafDevices() },
			} {
				want, err := read(h)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := read(again); err != nil || !cmp.Equal(want, got) {
					t.Errorf("%v, %v, want %v", got, err, want)
				}
			}
		})
	}
}

// figures lists the texts of files by the last part of their path; files that contain names are
// listed without text.
func figures(all map[string]string) []string {
	named := []string{"cgroup", "mountinfo", "boot_id", "machine-id", "ids", "hostname", "osrelease", "status", "stat", "tick"}
	var list []string
	for p, text := range all {
		base := path.Base(p)
		if slices.Contains(named, base) {
			text = ""
		}
		list = append(list, base+": "+text)
	}
	slices.Sort(list)
	return list
}

const secretMachine = `
-- mete/clocks --
boottime 2
monotonic 1
realtime 3
-- mete/ids --
77 /sys/fs/cgroup/kubepods.slice
-- etc/machine-id --
fa11ab1e5eed4fa11ab1e5eed4fa11ab
-- proc/sys/kernel/hostname --
alicelaptop.acmecorp.example
-- proc/sys/kernel/osrelease --
6.1.0-18-acmecorp-amd64
-- proc/sys/kernel/random/boot_id --
5ec2e700-1111-4222-8333-5ec2e7000001
-- proc/self/mountinfo --
21 27 0:20 / /proc rw - proc proc rw
22 27 0:21 / /sys rw - sysfs sysfs rw
27 1 8:2 / / rw - ext4 /dev/mapper/acmecorp-alice rw,errors=remount-ro
30 27 8:3 / /home/alice/acmecorp rw - nfs 10.77.66.55:/export/alice rw,addr=10.77.66.55
31 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate
32 27 0:27 /alice /mnt/alice/memory rw - cgroup cgroup rw,memory,release_agent=/opt/acmecorp/agent
-- proc/self/cgroup --
4:memory:/alice
0::/kubepods.slice/kubepods-pod5ec2e700_aaaa_4bbb_8ccc_5ec2e7000002.slice
-- proc/cgroups --
#subsys_name	hierarchy	num_cgroups	enabled
memory	4	5	1
-- proc/devices --
Block devices:
  8 sd
-- proc/diskstats --
   8       0 sda 1 2 3 4 5 6 7 8 9 10 11
 253       0 acmecorp-alice 1 2 3 4 5 6 7 8 9 10 11
-- proc/net/dev --
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       1       1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
 alice0:      1       1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
enx0011a1ce5eed: 4242 1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
-- proc/stat --
cpu  1 0 2 3 0 0 0 0 0 0
cpu0 1 0 2 3 0 0 0 0 0 0
intr 194141 77001 77002
btime 1760000000
-- proc/cpuinfo --
processor	: 0
model name	: AMD EPYC
Serial		: 5ec2e7serial
-- proc/meminfo --
MemTotal:       8 kB
MemFree:        4 kB
-- proc/100/stat --
100 (acmecorp-agent) S 1 100 100 0 -1 4194304 101 0 0 0 3 4 5 6 20 0 1 0 132901 3133440 382 18446744073709551615 77003 77004 77005 77006 77007 0 0 0 0 77008 0 0 17 1 0 0 0 0 0 77009 77010 77011 77012 77013 77014 77015 0
-- proc/100/cmdline --
acmecorp-agent --password=hunter2
-- proc/100/environ --
TOKEN=hunter2
-- proc/100/status --
Name:	acmecorp-agent
Tgid:	100
Pid:	100
PPid:	1
Uid:	1000	1000	1000	1000
Groups:	alice
-- proc/100/cgroup --
0::/kubepods.slice/kubepods-pod5ec2e700_aaaa_4bbb_8ccc_5ec2e7000002.slice/cri-containerd-5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2.scope
-- proc/101/stat --
101 (10.77.66.55-man) S 2 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 0 0 0 18446744073709551615 0 0 0
-- proc/102/stat --
102 (kworker/0:1-alice) S 2 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 0 0 0 18446744073709551615 0 0 0
-- proc/103/stat --
103 (sshd) S 1 0 0 0 -1 4194304 0 0 0 0 0 1 0 0 20 0 1 0 0 0 0 18446744073709551615 0 0 0
-- sys/block/sda/dev --
8:0
-- sys/block/sda/serial --
5ec2e7serial
-- sys/fs/cgroup/cgroup.controllers --
cpu io pids
-- sys/fs/cgroup/kubepods.slice/cpu.stat --
usage_usec 4711
-- sys/fs/cgroup/kubepods.slice/kubepods-pod5ec2e700_aaaa_4bbb_8ccc_5ec2e7000002.slice/cpu.stat --
usage_usec 4712
-- sys/fs/cgroup/kubepods.slice/kubepods-pod5ec2e700_aaaa_4bbb_8ccc_5ec2e7000002.slice/cri-containerd-5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2.scope/cpu.stat --
usage_usec 4713
-- sys/fs/cgroup/system.slice/sshd@3-10.77.66.55:22-10.77.66.56:50022.service/cpu.stat --
usage_usec 4714
-- sys/fs/cgroup/system.slice/sshd@4-fd00:5ec2::77:22.service/cpu.stat --
usage_usec 4715
-- sys/fs/cgroup/system.slice/ip-10-77-66-55.service/cpu.stat --
usage_usec 4716
-- sys/fs/cgroup/system.slice/backup-alice@acmecorp\x2dhome.service/cpu.stat --
usage_usec 4717
-- sys/fs/cgroup/system.slice/phone-004915112345678.service/cpu.stat --
usage_usec 4718
-- sys/fs/cgroup/system.slice/00:11:a1:ce:5e:ed.service/cpu.stat --
usage_usec 4719
-- sys/fs/cgroup/system.slice/müller.service/cpu.stat --
usage_usec 4720
-- mnt/alice/memory/memory.usage_in_bytes --
4721
-- mnt/alice/memory/pod5ec2e700-aaaa-4bbb-8ccc-5ec2e7000002/memory.usage_in_bytes --
4722
-- sys/class/powercap/intel-rapl:0/energy_uj --
4723
-- sys/class/powercap/intel-rapl:0/name --
package-0
`

func TestNoSecretSurvives(t *testing.T) {
	h := hosttest.Unpack(t, []byte(secretMachine))
	text, summary := take(t, h, capture.Default())
	for _, secret := range []string{"alice", "acme", "hunter2", "5ec2", "fa11", "a1ce", "a1:ce", "10.77", "10-77", "77.66", ".55", "-55", "serial\n", "12345678", "7700", "7701", "müller", "üller", "password", "Groups"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%q survives: %q", secret, text[max(0, i-60):min(len(text), i+60)])
		}
	}
	for n := 4711; n <= 4723; n++ {
		if !regexp.MustCompile(fmt.Sprintf(`(?m)(^| )%d$`, n)).MatchString(text) {
			t.Errorf("the figure %d is missing", n)
		}
	}
	for _, want := range []string{"kubepods.slice/kubepods-pod", "/cri-containerd-", "(sshd)", "(p1)", "kworker/0:1-", "6.1.0-18-", "-amd64\n", "\nmachine\n", "model name	: AMD EPYC", "package-0", "system.slice/sshd@3-"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing", want)
		}
	}
	for _, want := range []string{"2 hierarchies", "14 groups", "4 processes", "1 host names", "command lines", "mounts left out: 1"} {
		if !strings.Contains(summary, want) {
			t.Errorf("the summary lacks %q:\n%s", want, summary)
		}
	}
	// A pod has the same pseudonym with dashes and with underscores.
	v2 := regexp.MustCompile(`kubepods-pod([0-9a-f_]{36})\.slice`).FindStringSubmatch(text)
	v1 := regexp.MustCompile(`memory/pod([0-9a-f-]{36})/`).FindStringSubmatch(text)
	if v1 == nil || v2 == nil || v1[1] != strings.ReplaceAll(v2[1], "_", "-") {
		t.Errorf("pseudonyms of one pod: %q and %q", v1, v2)
	}
	again := hosttest.Unpack(t, []byte(text))
	ys, err := again.Hierarchies()
	if err != nil || len(ys) != 2 {
		t.Fatalf("hierarchies of the capture: %v, %v", ys, err)
	}
	for _, y := range ys {
		dir, ok := y.Dir(y.Self)
		if _, err := again.ReadDir(dir); !ok || err != nil {
			t.Errorf("own group %q: %v", y.Self, err)
		}
	}
}

func TestLimits(t *testing.T) {
	h := hosttest.Open(t, "v2-systemd-containerd")
	cfg := capture.Default()
	cfg.Groups, cfg.Processes = 3, 2
	text, summary := take(t, h, cfg)
	if n := strings.Count(text, "/cgroup.procs --\n"); n != 3 {
		t.Errorf("%d groups, want 3", n)
	}
	if n := strings.Count(text, "/schedstat --\n"); n != 2 {
		t.Errorf("%d processes, want 2", n)
	}
	for _, want := range []string{"groups left out", "processes left out"} {
		if !strings.Contains(summary, want) {
			t.Errorf("the summary lacks %q:\n%s", want, summary)
		}
	}
}

func TestCommand(t *testing.T) {
	h := hosttest.Open(t, "hybrid")
	file := filepath.Join(t.TempDir(), "m.txtar")
	run := func(args ...string) (stdout, stderr string, err error) {
		var out, errs bytes.Buffer
		cmd := capture.Command()
		cmd.SetArgs(append([]string{"--root", h.Path("/")}, args...))
		cmd.SetOut(&out)
		cmd.SetErr(&errs)
		cmd.SilenceUsage = true
		err = cmd.ExecuteContext(t.Context())
		return out.String(), errs.String(), err
	}
	stdout, stderr, err := run(file)
	if err != nil || stdout != "" || !strings.HasPrefix(stderr, "captured: 9 hierarchies") {
		t.Errorf("capture FILE: %q, %q, %v", stdout, stderr, err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(b), "A machine, captured by mete capture.") {
		t.Errorf("the file: %.60q, %v", b, err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", st.Mode(), err)
	}
	stdout, _, err = run("--ticks", "2", "--interval", "0s")
	if err != nil || !strings.HasPrefix(stdout, "A machine") {
		t.Errorf("capture: %.60q, %v", stdout, err)
	}
	for _, args := range [][]string{{"--groups", "0"}, {"--ticks", "10"}, {"--processes", "-1"}, {"--interval", "-1s"}} {
		if _, _, err := run(args...); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v, want invalid", args, err)
		}
	}
	if _, _, err := run(filepath.Join(file, "no", "dir")); err == nil {
		t.Error("capture into nothing succeeds")
	}
}
