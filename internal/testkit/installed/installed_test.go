package installed

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/hosttest"
	"mete.dev/mete/internal/testkit/qemu"
	"mete.dev/mete/internal/testkit/syncbuf"
)

// limit is how long one step in the virtual machine may take.
const limit = 5 * time.Minute

// A guest is a virtual machine with Debian.
type guest struct {
	t *testing.T
	m *qemu.Machine
}

// sh runs a script, which must succeed, and returns what it prints.
func (g *guest) sh(script string) string {
	g.t.Helper()
	out, code := g.try(script)
	if code != 0 {
		g.t.Fatalf("%s: exit code %d\n%s", script, code, out)
	}
	return out
}

// try runs a script, and returns what it prints and its exit code.
func (g *guest) try(script string) (string, int) {
	g.t.Helper()
	pid, err := g.m.Start("", []string{"HOME=/root", "LC_ALL=C.UTF-8"}, "/bin/sh", "-c", "{ "+script+"\n} >/mete-output 2>&1")
	if err != nil {
		g.t.Fatal(err)
	}
	code, err := g.m.Wait(pid, limit)
	if err != nil {
		g.t.Fatalf("%s: %v", script, err)
	}
	out, err := g.m.Read("/mete-output")
	if err != nil {
		g.t.Fatal(err)
	}
	return strings.TrimSpace(string(out)), code
}

// packages builds the Debian packages twice, as two versions.
func packages(t *testing.T, dir string) {
	t.Helper()
	out := filepath.Join(dir, "0.1.0")
	run := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, text)
		}
	}
	run("go", "run", "mete.dev/mete/tools/release", "-arch", "amd64", "-format", "deb", "-modified", "-version", "0.1.0", "-out", out)
	debs, err := filepath.Glob(filepath.Join(out, "*.deb"))
	if err != nil || len(debs) != 3 {
		t.Fatalf("%q, %v; want three packages", debs, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "0.2.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, deb := range debs {
		tree := filepath.Join(t.TempDir(), "tree")
		run("dpkg-deb", "-R", deb, tree)
		control := filepath.Join(tree, "DEBIAN", "control")
		text, err := os.ReadFile(control)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(control, []byte(strings.ReplaceAll(string(text), "0.1.0", "0.2.0")), 0o644); err != nil {
			t.Fatal(err)
		}
		run("dpkg-deb", "-Zgzip", "-z1", "-b", tree, filepath.Join(dir, "0.2.0", strings.ReplaceAll(filepath.Base(deb), "0.1.0", "0.2.0")))
	}
}

// start boots Debian with the packages.
func start(t *testing.T) *guest {
	t.Helper()
	dir, err := os.MkdirTemp("", "mete-vm-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	debs := filepath.Join(dir, "packages")
	if err := os.Mkdir(debs, 0o755); err != nil {
		t.Fatal(err)
	}
	packages(t, debs)
	image, err := root(t.Context(), dir, debs)
	if err != nil {
		t.Fatal(err)
	}
	if err := qemu.Build(t.Context(), filepath.Join(dir, "init"), "internal/testkit/qemu/init"); err != nil {
		t.Fatal(err)
	}
	kernel, err := qemu.FindKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var console syncbuf.Buffer
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(console.String())
		}
	})
	m, err := qemu.Boot(t.Context(), qemu.Config{
		Name: "mete-test-installed", UUID: "6d657465-0000-4000-8000-000000000003", CPUs: 2, Memory: 1024, Kernel: kernel,
		Init: filepath.Join(dir, "init"), Dir: dir, Root: image,
	}, func(line string) { fmt.Fprintln(&console, line) }, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	g := &guest{t, m}
	g.sh("until [ -S /run/systemd/private ]; do sleep 0.5; done; systemctl is-system-running --wait || systemctl --failed --no-legend")
	// There is no network, and no resolver is needed.
	g.sh("ip link set lo up; echo 127.0.0.1 localhost >/etc/hosts")
	return g
}

// The packages install programs that measure under their units, with no more rights than these
// name; an upgrade keeps everything; purging leaves nothing.
func TestPackages(t *testing.T) {
	testkit.Stage(t, "vm", "boots a virtual machine with Debian and installs packages")
	hosttest.Need(t, "qemu")
	g := start(t)

	g.sh("dpkg -i /packages/0.1.0/*.deb")
	for _, u := range []string{"mete-server", "mete-agent", "mete-up"} {
		if out, _ := g.try("systemctl is-active " + u + "; systemctl is-enabled " + u); out != "inactive\ndisabled" {
			t.Errorf("%s after the installation: %q", u, out)
		}
	}
	g.sh(`echo 'METE_SERVER_FLAGS=--name localhost' >/etc/mete/server.env; echo METE_SERVER=https://localhost:9797 >/etc/mete/agent.env
systemctl enable --now mete-server
until mete token create --role agent --uses 1 --state /var/lib/mete-server >/etc/mete/token 2>/dev/null; do systemctl is-active mete-server || exit 1; sleep 1; done
systemctl enable --now mete-agent`)
	token := g.sh("mete token create --role viewer --state /var/lib/mete-server 2>/dev/null")
	ask := "METE_TOKEN=" + token + " mete usage --server https://localhost:9797 "
	g.sh("until " + ask + "--from -1h --by node | grep -q " + hostname + "; do systemctl is-active mete-agent || { journalctl -u mete-agent; exit 1; }; sleep 2; done")

	t.Run("rights", func(t *testing.T) {
		g := &guest{t, g.m}
		// The bits are those of capability.h: DAC_READ_SEARCH 2, NET_BIND_SERVICE 10, NET_ADMIN
		// 12, PERFMON 38, BPF 39.
		for unit, want := range map[string]uint64{"mete-server": 0, "mete-agent": 1<<2 | 1<<10 | 1<<12 | 1<<38 | 1<<39} {
			status := g.sh("cat /proc/$(systemctl show -p MainPID --value " + unit + ")/status")
			for _, set := range []string{"CapEff", "CapPrm", "CapBnd"} {
				if have, err := strconv.ParseUint(field(status, set), 16, 64); err != nil || have != want {
					t.Errorf("%s: %s is %x, %v; want %x", unit, set, have, err, want)
				}
			}
			if uid := field(status, "Uid"); uid == "0" || uid == "" {
				t.Errorf("%s runs as user %q", unit, uid)
			}
			if field(status, "NoNewPrivs") != "1" || field(status, "Seccomp") != "2" {
				t.Errorf("%s: NoNewPrivs %s, Seccomp %s", unit, field(status, "NoNewPrivs"), field(status, "Seccomp"))
			}
			t.Logf("%s: %s", unit, g.sh("systemd-analyze security --no-pager "+unit+" | tail -1"))
		}
		if log := g.sh("journalctl -o cat -u mete-agent"); !strings.Contains(log, "reader=bpf") || strings.Contains(log, "level=ERROR") {
			t.Errorf("the agent does not measure with BPF:\n%s", log)
		}
	})

	t.Run("measures", func(t *testing.T) {
		g := &guest{t, g.m}
		out := g.sh("systemd-run --wait --unit=work -p CPUAccounting=yes sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'")
		m := regexp.MustCompile(`CPU time consumed: (.*)`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("systemd shows no CPU time:\n%s", out)
		}
		want, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(m[1], " ", ""), "min", "m"))
		if err != nil {
			t.Fatal(err)
		}
		// Its last window comes within some seconds of its end.
		var have time.Duration
		testkit.Eventually(t, "work.service is in the ledger as a whole", func() bool {
			have, err = cpuOf(g.sh(ask+"--from -1h --by job -o json"), "work.service")
			return err == nil && have > want-want/100
		})
		// systemd reads the same counter, some moments before the group is removed.
		if have > want+want/20+50*time.Millisecond {
			t.Errorf("work.service used %v by the ledger, %v by systemd", have, want)
		}
		t.Logf("work.service: %v by the ledger, %v by systemd", have, want)
	})

	t.Run("jobs", func(t *testing.T) {
		g := &guest{t, g.m}
		g.sh(`systemd-run --wait --unit=jobs --setenv=METE_STATE=/root/state mete run --name outer --json /root/outer.json -- \
			mete run --name inner --json /root/inner.json -- sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done'`)
		g.sh("systemd-run --wait --unit=job-of-user --uid=65534 -p Delegate=yes --setenv=METE_STATE=/tmp/state mete run --name ordinary --json /tmp/ordinary.json -- true")
		var inner, outer, ordinary struct {
			Group string   `json:"group"`
			Notes []string `json:"notes"`
			CPU   float64  `json:"cpu_seconds"`
			Peak  int64    `json:"memory_peak_bytes"`
		}
		for file, v := range map[string]any{"/root/inner": &inner, "/root/outer": &outer, "/tmp/ordinary": &ordinary} {
			if err := json.Unmarshal([]byte(g.sh("cat "+file+".json")), v); err != nil {
				t.Fatal(err)
			}
		}
		if path.Dir(inner.Group) != outer.Group || !strings.Contains(outer.Group, ".scope/") {
			t.Errorf("groups %s and %s; want the inner one in the outer one, in a scope", inner.Group, outer.Group)
		}
		if inner.CPU <= 0 || outer.CPU < inner.CPU || inner.Peak <= 0 || outer.Peak < inner.Peak {
			t.Errorf("inner job: %.3f s, at most %d B; outer job: %.3f s, at most %d B", inner.CPU, inner.Peak, outer.CPU, outer.Peak)
		}
		t.Logf("inner %+v, outer %+v, of an ordinary user %+v", inner, outer, ordinary)
		// All registered with the agent, whose user is not theirs.
		if notes := strings.Join(slices.Concat(inner.Notes, outer.Notes, ordinary.Notes), "\n"); strings.Contains(notes, "register") {
			t.Errorf("notes:\n%s", notes)
		}
		for _, name := range []string{"inner", "outer", "ordinary"} {
			testkit.Eventually(t, "the run of "+name+" is in the ledger with its name", func() bool {
				out, code := g.try("METE_TOKEN=" + token + " mete runs " + name + " --server https://localhost:9797 -o json")
				return code == 0 && strings.Contains(out, `"`+name+`"`)
			})
		}
		if out := g.sh("systemctl list-units --all --no-legend 'mete-*.scope'; find /sys/fs/cgroup -name 'mete-run-*'"); out != "" {
			t.Errorf("left after the jobs:\n%s", out)
		}
	})

	t.Run("backup", func(t *testing.T) {
		g := &guest{t, g.m}
		g.sh("mete backup /var/cache/mete-server/before --state /var/lib/mete-server && mete check /var/cache/mete-server/before")
		if out := g.sh("stat -L -c '%a %F' /var/cache/mete-server/before /var/cache/mete-server/before/ledger.db"); !strings.HasPrefix(out, "700 directory\n") || strings.Count(out, "\n") != 1 {
			t.Errorf("the backup: %q", out)
		}
	})

	t.Run("upgrade", func(t *testing.T) {
		g := &guest{t, g.m}
		g.sh("echo '# mine' >>/etc/mete/server.env")
		span := "--from $(cat /run/from) --to $(cat /run/to) --by job -o csv"
		// A range whose last windows are booked.
		g.sh("to=$(( ($(date +%s) / 60 + 1) * 60 )); date -u -d @$((to - 3600)) +%FT%TZ >/run/from; date -u -d @$to +%FT%TZ >/run/to; sleep $((to + 30 - $(date +%s)))")
		before, pid := g.sh(ask+span), g.sh("systemctl show -p MainPID --value mete-server mete-agent")
		g.sh("dpkg -i /packages/0.2.0/*.deb")
		g.sh("until " + ask + "--from -1h --by node >/dev/null; do sleep 1; done")
		if after := g.sh(ask + span); after != before || !strings.Contains(after, "work.service") {
			t.Errorf("after the upgrade the ledger has\n%s\nbefore:\n%s", after, before)
		}
		if g.sh("systemctl show -p MainPID --value mete-server mete-agent") == pid {
			t.Error("the upgrade did not restart the services")
		}
		if out := g.sh("systemctl is-active mete-server mete-agent; dpkg-query -W -f '${Version}\n' mete mete-agent mete-server; tail -1 /etc/mete/server.env"); out != "active\nactive\n0.2.0\n0.2.0\n0.2.0\n# mine" {
			t.Errorf("after the upgrade: %q", out)
		}
		nodes := g.sh("METE_TOKEN=" + token + " mete nodes --server https://localhost:9797 -o csv")
		if lines := strings.Count(nodes, "\n"); lines != 1 {
			t.Errorf("after the upgrade the machine is not the same node:\n%s", nodes)
		}
	})

	t.Run("purge", func(t *testing.T) {
		g := &guest{t, g.m}
		g.sh("dpkg -P mete-server mete-agent mete; systemctl daemon-reload")
		if left := g.sh("find / -xdev -name '*mete*' -not -path '/proc/*' -not -path '/packages*' -not -path '/mete-*' -not -path '/var/log/journal/*' -not -path '/root/*'; ls -A /run | grep mete || true; getent passwd | grep mete || true; systemctl list-unit-files | grep mete || true; ps -eo comm | grep '^mete' | grep -v mete-init || true"); left != "" {
			t.Errorf("purging leaves\n%s", left)
		}
	})
}

// cpuOf returns the CPU time of a job in an answer in JSON.
func cpuOf(answer, job string) (time.Duration, error) {
	var v struct {
		Groups []struct {
			Job string  `json:"job"`
			CPU float64 `json:"cpu_seconds"`
		} `json:"groups"`
	}
	if err := json.Unmarshal([]byte(answer), &v); err != nil {
		return 0, err
	}
	for _, g := range v.Groups {
		if g.Job == job {
			return time.Duration(g.CPU * float64(time.Second)), nil
		}
	}
	return 0, fmt.Errorf("no job %s", job)
}

// field returns the first value of a line of /proc/PID/status.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			return f[1]
		}
	}
	return ""
}
