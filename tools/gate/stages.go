package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

// stages returns all checks in their order: quick and frequently failing ones first.
func stages() []stage {
	const s, m = time.Second, time.Minute
	tested := []string{"chromium", "dbus-daemon", "gcc", "iproute2", "libc6-dev", "prometheus", "qemu-system-x86"}
	return []stage{
		{"format", "code is formatted", commit, 10 * s, nil, func(sh *shell) error { return sh.quiet("gofmt", "-l", ".") }},
		{"prose", "code and documents follow the rules for spelling and wording", commit, 10 * s, nil, func(sh *shell) error { return sh.test("./tools/prose") }},
		{"tidy", "go.mod lists what is used", commit, 10 * s, nil, func(sh *shell) error { return sh.do("go", "mod", "tidy", "-diff") }},
		{"build", "every program builds", commit, 1 * m, nil, func(sh *shell) error { return sh.do("go", "build", "./cmd/...") }},
		{"arch", "packages import what the plan allows", commit, 10 * s, nil, func(sh *shell) error { return sh.test("./tools/arch") }},
		{"vet", "go vet", commit, 30 * s, nil, func(sh *shell) error { return sh.do("go", append([]string{"vet"}, sh.packages...)...) }},
		{"static", "staticcheck, and no error is dropped", commit, 1 * m, nil, static},
		{"fix", "the code uses current language features", landing, 30 * s, nil, func(sh *shell) error { return sh.do("go", "fix", "-diff", "./...") }},
		{"generated", "generated files match their sources", landing, 30 * s, nil, generated},
		{"test", "tests whose verdict does not depend on time", commit, 5 * m, tested, func(sh *shell) error {
			// The properties draw the same cases in each run; the stage drawn draws others.
			sh.env = append(must(), "RAPID_SEED=1")
			return sh.test(append([]string{"-timeout=60m"}, sh.packages...)...)
		}},
		{"torture-short", "the ledger against the kernel's counters, with a fixed number of faults", landing, 2 * m, []string{"iproute2"}, staged("torture-short", "-v")},
		{"readme", "the commands of the README", landing, 30 * s, nil, readme},

		{"compile", "generated files, compiled again", release, 1 * m, compilers, regenerate},
		{"accuracy", "figures against real load on this kernel, one test at a time", release, 10 * m, []string{"iproute2"}, staged("accuracy", "-v", "-p=1", "-parallel=1")},
		{"timing", "tests that depend on wall time or on a share of CPU", release, 5 * m, []string{"chromium", "iproute2", "prometheus"}, staged("timing", "-p=1")},
		{"torture", "the ledger against the kernel's counters, while everything is killed at random", release, 8 * m, []string{"iproute2", "postgresql-15"}, staged("torture,postgres", "-v")},
		{"drawn", "properties and queries, with many drawn cases", release, 60 * m, nil, drawn},
		{"attack", "attacks on real programs", release, 5 * m, nil, staged("attack", "-v", "-p=1", "-parallel=1")},
		{"race", "the tests with the race detector, in random order", release, 20 * m, tested, func(sh *shell) error {
			sh.env = append(must(), "CGO_ENABLED=1")
			return sh.test("-timeout=60m", "-race", "-shuffle=on", "./...")
		}},
		{"postgres", "the ledger on PostgreSQL", release, 3 * m, []string{"postgresql-15"}, staged("postgres")},
		{"peers", "beside a stock Prometheus, Alertmanager, MQTT broker, Docker, Podman and Slurm", release, 7 * m, []string{"docker.io", "mosquitto", "mosquitto-clients", "munge", "podman", "prometheus", "prometheus-alertmanager", "slurm-client", "slurmctld", "slurmd"}, staged("peers", "-v", "-p=1")},
		{"vm", "virtual machines: shares of energy, names of libvirt, cgroup v2 alone, installed packages", release, 12 * m, []string{"e2fsprogs", "libvirt-clients", "libvirt-daemon", "libvirt-daemon-driver-qemu", "mmdebstrap", "qemu-system-x86"}, staged("vm", "-v", "-p=1")},
		{"kube", "a Kubernetes cluster: its API, simulated nodes, and two real ones", release, 10 * m, []string{"conntrack", "iproute2", "iptables", "runc"}, staged("kube", "-v", "-p=1")},
		{"release", "two builds of a release give the same bytes, and RPM accepts its packages", release, 15 * m, []string{"rpm"}, staged("release", "-v")},
		{"pages", "every page of the dashboard in light, dark and on a phone, and of 1000 machines", release, 9 * m, []string{"chromium"}, staged("pages", "-p=1")},
		{"page-figures", "each chart of the dashboard against the ledger's numbers", release, 8 * m, []string{"chromium"}, staged("page-figures", "-p=1")},
		{"regressions", "each fix, undone by itself, makes its test fail", release, 20 * m, tested, func(sh *shell) error {
			sh.env = must()
			return sh.do("go", "run", "./tools/mutate", "-regressions", "./tools/mutate/regressions")
		}},
		{"fuzz", "each fuzz target for 10 s", release, 20 * m, nil, fuzz},
		{"bench", "the cost of measuring and of the ledger, against their budgets", release, 10 * m, []string{"prometheus"}, bench},
	}
}

// static runs staticcheck's analyzers and errcheck as a vet tool, so that their
// results are cached.
func static(sh *shell) error {
	dir, err := os.MkdirTemp("", "mete-gate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	tool := filepath.Join(dir, "lint")
	if err := sh.do("go", "build", "-o", tool, "./tools/lint"); err != nil {
		return err
	}
	return sh.do("go", append([]string{"vet", "-vettool=" + tool}, sh.packages...)...)
}

// staged returns the run of a stage that consists of the tests with that name in
// testkit.Stage. Further names, after commas, are stages in which these tests have cases.
func staged(names string, flags ...string) func(*shell) error {
	name, _, _ := strings.Cut(names, ",")
	return func(sh *shell) error {
		tests, err := stagedTests(".")
		if err != nil {
			return err
		}
		pattern, packages := only(tests, name)
		if len(packages) == 0 {
			return skip("no test is in this stage")
		}
		sh.env = append(must(), "METE_STAGE="+names)
		return sh.test(append(append([]string{"-timeout=60m", "-run=" + pattern}, flags...), packages...)...)
	}
}

// drawn runs the tests of the stage, which draw many histories, and the properties of all
// other packages with more cases than the default gate.
func drawn(sh *shell) error {
	tests, err := stagedTests(".")
	if err != nil {
		return err
	}
	_, own := only(tests, "drawn")
	packages, err := packagesOf(`\w+`, "rapid.Check(")
	if err != nil {
		return err
	}
	for _, dir := range own {
		delete(packages, dir)
	}
	err = staged("drawn")(sh)
	sh.env = must()
	// Each package runs its tests with the flag; tests without properties run once. The go command knows
	// no such flag, and takes what follows it for arguments of the tests.
	return errors.Join(err, sh.test(append(append([]string{"-timeout=60m"}, sorted(packages)...), "-rapid.checks=2000")...))
}

// must returns the setting that makes tests fail instead of skip if their requirements can
// be met here. An existing METE_MUST takes precedence.
func must() []string {
	if os.Getenv("METE_MUST") != "" {
		return nil
	}
	return []string{"METE_MUST=" + strings.Join(able(), ",")}
}

// able lists the requirements that can be met here, in the words of METE_MUST.
func able() (things []string) {
	for thing, program := range map[string]string{"chromium": "chromium", "dpkg": "dpkg-deb", "dbus": "dbus-daemon", "qemu": "qemu-system-x86_64", "promtool": "promtool", "prometheus": "prometheus", "gcc": "gcc", "alertmanager": "prometheus-alertmanager", "dockerd": "dockerd", "podman": "podman", "curl": "curl", "setpriv": "setpriv", "systemd-analyze": "systemd-analyze", "unshare": "unshare"} {
		if _, err := exec.LookPath(program); err == nil {
			things = append(things, thing)
		}
	}
	_, broker := os.Stat("/usr/sbin/mosquitto")
	_, client := os.Stat("/usr/bin/mosquitto_pub")
	if broker == nil && client == nil {
		things = append(things, "mosquitto")
	}
	if _, err := os.Stat("/dev/ptmx"); err == nil {
		things = append(things, "pty")
	}
	if os.Geteuid() != 0 {
		return things
	}
	things = append(things, "root")
	if _, err := os.Stat("/proc/self/ns/net"); err == nil {
		things = append(things, "netns")
	}
	if _, err := os.Stat("/usr/lib/postgresql/15/bin/postgres"); err == nil {
		things = append(things, "postgres")
	}
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		things = append(things, "kvm")
		_ = f.Close() // only opening it matters
	}
	// Each directory of a cgroup v1 mount has this file.
	for thing, file := range map[string]string{"cgroup1": "cpuacct/cpuacct.usage", "memcg1": "memory/memory.usage_in_bytes"} {
		if _, err := os.Stat("/sys/fs/cgroup/" + file); err == nil {
			things = append(things, thing)
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err == nil {
		things = append(things, "loop")
	}
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err == nil && features.HaveMapType(ebpf.Array) == nil {
		things = append(things, "bpf")
	}
	return things
}

func fuzz(sh *shell) error {
	packages, err := packagesOf("Fuzz", "")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range sorted(packages) {
		for _, target := range packages[dir] {
			errs = append(errs, sh.fuzz(dir, target))
		}
	}
	return errors.Join(errs...)
}

// fuzz runs one target, and again if only Go's own fuzzer failed.
func (sh *shell) fuzz(dir, target string) error {
	args := []string{"test", "-run=^$", "-fuzz=^" + target + "$", "-fuzztime=10s", "-fuzzminimizetime=10x", dir}
	from := sh.out.Len()
	err := sh.do("go", args...)
	if err != nil && lateStop(sh.out.String()[from:]) {
		fmt.Fprintln(&sh.out, "no input failed: the fuzzer reported its own deadline as a failure (go.dev/issue/75804); again")
		err = sh.do("go", args...)
	}
	return err
}

// lateStop reports whether the output of a fuzz target is the failure that Go's fuzzer
// before 1.27 reports when its time ends while it runs an input (go.dev/issue/75804): a
// deadline, no panic, no error of a test, and no input kept.
func lateStop(out string) bool {
	_, failure, found := strings.Cut(out, "--- FAIL: ")
	lines := strings.Split(failure, "\n")
	return found && len(lines) > 2 && strings.TrimSpace(lines[1]) == "context deadline exceeded" && lines[2] == "FAIL"
}

// bench checks the agent against its budgets with 500 groups, and the server with 100
// machines: bytes on the wire, CPU time per row, and memory and the delay of live windows
// while the backlogs of a day drain.
func bench(sh *shell) error {
	twice := func(args ...string) error {
		args = append([]string{"run", "./tools/bench"}, args...)
		err := sh.do("go", args...)
		if err != nil {
			// The same work costs some percent more beside busy neighbors: only two results
			// over a budget are a failure.
			fmt.Fprintln(&sh.out, "once more")
			err = sh.do("go", args...)
		}
		return err
	}
	return errors.Join(twice("agent", "-n", "500", "-tick", "1s", "-for", "60s"),
		twice("server", "-database", "sqlite", "-part", "live,full,drain,metrics", "-origins", "100", "-backlog", "100", "-for", "20s"))
}
