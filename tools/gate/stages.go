package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

// stages returns all checks in the order in which they run: what is quick and
// often wrong first, and the build before what needs what it built.
func stages() []stage {
	const s, m = time.Second, time.Minute
	return []stage{
		{"install", "the Debian packages that the tests use", false, 2 * m, install},
		{"gofmt", "code is formatted", false, 10 * s, func(sh *shell) error { return sh.quiet("gofmt", "-l", ".") }},
		// On a fresh machine everything is built here for the first time: 5 min of
		// two cores, and 30 s where it was built before.
		{"build", "every program builds", false, 5 * m, func(sh *shell) error { return sh.do("go", "build", "./...") }},
		{"tidy", "go.mod lists what is used", false, 10 * s, func(sh *shell) error { return sh.do("go", "mod", "tidy", "-diff") }},
		{"vet", "go vet", false, 1 * m, func(sh *shell) error { return sh.do("go", "vet", "./...") }},
		{"fix", "the code uses the language as it is today", false, 1 * m, func(sh *shell) error { return sh.do("go", "fix", "-diff", "./...") }},
		{"static", "staticcheck", false, 2 * m, func(sh *shell) error { return sh.do("go", "tool", "staticcheck", "./...") }},
		{"errcheck", "no error is dropped", false, 1 * m, func(sh *shell) error {
			return sh.do("go", "tool", "errcheck", "-exclude", "tools/gate/errcheck.txt", "./...")
		}},
		{"generated", "generated files are what their sources make", false, 1 * m, generated},
		{"test", "unit tests, and the import plan", false, 6 * m, func(sh *shell) error {
			sh.env = must()
			return sh.do("go", "test", "-timeout=8m", "./...")
		}},
		{"accuracy", "figures against real load on this kernel, one test at a time", false, 10 * m, accuracy},
		{"torture", "the ledger against the jobs' own counters, while everything is killed", false, 8 * m, func(sh *shell) error {
			sh.env = append(must(), "METE_TORTURE=1")
			return sh.do("go", "test", "-timeout=30m", "-count=1", "-run=Torture", "./internal/torture")
		}},
		{"readme", "the commands of the README", false, 30 * s, readme},
		{"race", "all tests with the race detector, in random order", true, 20 * m, func(sh *shell) error {
			sh.env = append(must(), "CGO_ENABLED=1")
			return sh.do("go", "test", "-timeout=15m", "-race", "-shuffle=on", "./...")
		}},
		{"energy", "a virtual machine and what its host gives it; meters outside the machine, for some minutes; a stock Prometheus", true, 8 * m, func(sh *shell) error {
			sh.env = append(must(), "METE_VM=1", "METE_OUTSIDE=1")
			err := sh.do("go", "test", "-timeout=15m", "-count=1", "-p=2", "-v", "-run=^(TestBoot|TestGuest|TestMetersOutside)$", "./cmd/mete-agent", "./internal/xtest/qemu", "./internal/guest")
			// A Prometheus scrapes every half second: what computes beside it would keep it.
			return errors.Join(err, sh.do("go", "test", "-timeout=15m", "-count=1", "-p=1", "-v", "-run=^TestStock", "./internal/prom", "./cmd/mete-agent"))
		}},
		{"pages", "every page of the dashboard in light, dark and on a phone, and of 1000 machines", true, 9 * m, func(sh *shell) error {
			sh.env = append(must(), "METE_PAGES=1")
			return sh.do("go", "test", "-timeout=15m", "-count=1", "-run=InChromium", "./internal/page", "./internal/api")
		}},
		{"fuzz", "each fuzz target for 10 s", true, 20 * m, fuzz},
		{"bench", "what measuring and the ledger cost, against their budgets", true, 10 * m, bench},
	}
}

// needs are the files that tests and generated code want, and the Debian
// package of each.
var needs = []struct{ file, debian string }{
	{"/usr/bin/clang-19", "clang-19"},                        // programs in the kernel
	{"/usr/bin/llvm-strip-19", "llvm-19"},                    // the same
	{"/usr/include/bpf/bpf_helpers.h", "libbpf-dev"},         // the same
	{"/usr/sbin/ip", "iproute2"},                             // veth pairs and namespaces in network tests
	{"/usr/bin/tmux", "tmux"},                                // mete top in a terminal
	{"/usr/bin/chromium", "chromium"},                        // the page of mete up
	{"/usr/bin/dbus-daemon", "dbus-daemon"},                  // the scopes of systemd
	{"/usr/bin/protoc", "protobuf-compiler"},                 // the wire's generated code
	{"/usr/lib/postgresql/15/bin/postgres", "postgresql-15"}, // the ledger on PostgreSQL
	{"/usr/bin/prometheus", "prometheus"},                    // meters that Prometheus scrapes, and the tests of the shipped rules
	{"/usr/sbin/mosquitto", "mosquitto"},                     // meters that publish by MQTT
	{"/usr/bin/mosquitto_pub", "mosquitto-clients"},          // the same
	{"/usr/bin/amtool", "prometheus-alertmanager"},           // who is told of alerts
	{"/usr/bin/gcc", "gcc"},                                  // the race detector
	{"/usr/include/stdlib.h", "libc6-dev"},                   // the same
	{"/usr/bin/qemu-system-x86_64", "qemu-system-x86"},       // virtual machines
}

// missing lists the Debian packages that are not there.
func missing() (packages []string) {
	for _, n := range needs {
		if _, err := os.Stat(n.file); err != nil {
			packages = append(packages, n.debian)
		}
	}
	return packages
}

func install(sh *shell) error {
	packages := missing()
	if len(packages) == 0 {
		return nil
	}
	hint := "apt-get install " + strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return skip("what needs them will fail or skip; as root: " + hint)
	}
	sh.env = []string{"DEBIAN_FRONTEND=noninteractive"}
	if err := sh.do("apt-get", "update", "-qq"); err != nil {
		return err
	}
	return sh.do("apt-get", append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)...)
}

// generated makes all generated files again and compares. It leaves the new
// ones, which are those to commit.
func generated(sh *shell) error {
	for _, p := range missing() {
		if p == "clang-19" || p == "llvm-19" || p == "libbpf-dev" || p == "protobuf-compiler" {
			return fmt.Errorf("%s is missing: apt-get install clang-19 llvm-19 libbpf-dev protobuf-compiler", p)
		}
	}
	before, err := hashes(sh)
	if err != nil {
		return err
	}
	if err := sh.do("go", "generate", "./..."); err != nil {
		return err
	}
	after, err := hashes(sh)
	if err != nil {
		return err
	}
	var changed []string
	for name, sum := range after {
		if before[name] != sum {
			changed = append(changed, name)
		}
	}
	slices.Sort(changed)
	if len(changed) > 0 {
		return fmt.Errorf("go generate changed %s", strings.Join(changed, ", "))
	}
	return nil
}

// hashes returns a checksum of each file that git tracks or would.
func hashes(sh *shell) (map[string][sha256.Size]byte, error) {
	list, err := sh.output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	sums := map[string][sha256.Size]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, but not yet from the index
		} else if err != nil {
			return nil, err
		}
		sums[name] = sha256.Sum256(b)
	}
	return sums, nil
}

// accuracy runs the tests that measure real load. Other stages leave them out,
// as METE_ACCURACY is not set there: they want the machine for themselves.
// What this kernel can do must not be skipped: METE_MUST makes that a failure.
func accuracy(sh *shell) error {
	packages, err := packagesOf("TestAccuracy")
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return skip("no test is named TestAccuracy...")
	}
	sh.env = append(must(), "METE_ACCURACY=1")
	args := []string{"test", "-count=1", "-p=1", "-parallel=1", "-timeout=15m", "-v", "-run=^TestAccuracy"}
	return sh.do("go", append(args, sorted(packages)...)...)
}

// must is the setting that makes tests fail that would skip although what they
// need can be had here. Whoever sets METE_MUST knows better.
func must() []string {
	if os.Getenv("METE_MUST") != "" {
		return nil
	}
	return []string{"METE_MUST=" + strings.Join(able(), ",")}
}

// able lists what tests can have here, in the words of METE_MUST.
func able() (things []string) {
	for thing, program := range map[string]string{"chromium": "chromium", "dbus": "dbus-daemon", "qemu": "qemu-system-x86_64", "promtool": "promtool", "prometheus": "prometheus", "gcc": "gcc", "alertmanager": "prometheus-alertmanager"} {
		if _, err := exec.LookPath(program); err == nil {
			things = append(things, thing)
		}
	}
	_, broker := os.Stat("/usr/sbin/mosquitto")
	_, client := os.Stat("/usr/bin/mosquitto_pub")
	if broker == nil && client == nil {
		things = append(things, "mosquitto")
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
		_ = f.Close() // it was asked nothing
	}
	// A mount of cgroup v1 has one of these in each directory.
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
	packages, err := packagesOf("Fuzz")
	if err != nil {
		return err
	}
	if len(packages) == 0 {
		return skip("no fuzz targets")
	}
	var errs []error
	for _, dir := range sorted(packages) {
		for _, target := range packages[dir] {
			errs = append(errs, sh.fuzz(dir, target))
		}
	}
	return errors.Join(errs...)
}

// fuzz runs one target, and once again where only Go's own fuzzer failed.
func (sh *shell) fuzz(dir, target string) error {
	args := []string{"test", "-run=^$", "-fuzz=^" + target + "$", "-fuzztime=10s", "-fuzzminimizetime=10x", dir}
	from := sh.out.Len()
	err := sh.do("go", args...)
	if err != nil && lateStop(sh.out.String()[from:]) {
		fmt.Fprintln(&sh.out, "no input failed: the fuzzer took its own end of time for a failure (go.dev/issue/75804); again")
		err = sh.do("go", args...)
	}
	return err
}

// lateStop reports whether what a fuzz target printed is the failure that Go's
// fuzzer before 1.27 makes up when its time ends while an input is being tried
// (go.dev/issue/75804): a deadline, no panic, no error of a test, and no input
// kept.
func lateStop(out string) bool {
	_, failure, found := strings.Cut(out, "--- FAIL: ")
	lines := strings.Split(failure, "\n")
	return found && len(lines) > 2 && strings.TrimSpace(lines[1]) == "context deadline exceeded" && lines[2] == "FAIL"
}

// packagesOf finds the tests of each package whose names have a prefix.
func packagesOf(prefix string) (map[string][]string, error) {
	declared := regexp.MustCompile(`(?m)^func (` + prefix + `\w*)\(`)
	packages := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() != "." && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range declared.FindAllSubmatch(src, -1) {
			dir := "./" + filepath.Dir(path)
			packages[dir] = append(packages[dir], string(m[1]))
		}
		return nil
	})
	return packages, err
}

func sorted(packages map[string][]string) []string {
	var dirs []string
	for dir := range packages {
		dirs = append(dirs, dir)
	}
	slices.Sort(dirs)
	return dirs
}

// promised are the commands that the README must name.
var promised = []string{"go run ./cmd/mete run", "go run ./cmd/mete top", "go run ./cmd/mete up", "go run ./cmd/mete usage", "go run ./cmd/mete gaps", "go run ./tools/gate"}

// readme runs what the README tells a newcomer to run, as far as it ends by
// itself, with a home of its own.
func readme(sh *shell) error {
	text, err := os.ReadFile("README.md")
	if err != nil {
		return err
	}
	for _, command := range promised {
		if !bytes.Contains(text, []byte(command)) {
			return fmt.Errorf("README.md does not name %q", command)
		}
	}
	dir, err := os.MkdirTemp("", "mete-gate-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	mete := filepath.Join(dir, "mete")
	if err := sh.do("go", "build", "-o", dir+"/", "./cmd/mete", "./cmd/mete-server"); err != nil {
		return err
	}
	sh.env = []string{"HOME=" + dir, "METE_STATE=" + dir, "METE_SOCKET=" + filepath.Join(dir, "sock")}
	url, end, err := sh.up(mete)
	if err != nil {
		return err
	}
	sh.env = append(sh.env, "METE_SERVER="+url)
	for _, args := range [][]string{
		{"run", "--", "sh", "-c", "echo hello"},
		{"run", "-o", "json", "--", "true"},
		{"report", "--last"},
		{"top", "-b", "-n", "1"},
		{"usage", "--from", "-1h"},
		{"nodes"},
		{"gaps"},
	} {
		if err := sh.do(mete, args...); err != nil {
			return errors.Join(err, end())
		}
	}
	return end()
}

// up starts mete up on a free port and returns its URL, and what ends it.
func (sh *shell) up(mete string) (url string, end func() error, err error) {
	cmd := sh.command(mete, "up", "--listen", "127.0.0.1:0")
	cmd.Stderr = &sh.out
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	end = func() error {
		// One that has ended by itself already is an error of Wait.
		_ = cmd.Process.Signal(syscall.SIGTERM)
		return cmd.Wait()
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		fmt.Fprintln(&sh.out, lines.Text())
		if u, ok := strings.CutPrefix(lines.Text(), "mete up: "); ok {
			url = u
		}
		if strings.HasPrefix(lines.Text(), "Stop with") {
			return url, end, nil
		}
	}
	return "", nil, errors.Join(errors.New("mete up ended before it was ready"), end())
}

// bench holds the agent to its budgets with 500 groups, and the server with 100
// machines: bytes on the wire, CPU time of a row, and memory and the delay of live
// windows while the backlogs of a day drain.
func bench(sh *shell) error {
	if _, err := os.Stat("tools/bench"); err != nil {
		return skip("tools/bench is not there")
	}
	twice := func(args ...string) error {
		args = append([]string{"run", "./tools/bench"}, args...)
		err := sh.do("go", args...)
		if err != nil {
			// The same work costs some percent more beside busy neighbours: what is over a
			// budget twice is over it.
			fmt.Fprintln(&sh.out, "once more")
			err = sh.do("go", args...)
		}
		return err
	}
	return errors.Join(twice("agent", "-n", "500", "-tick", "1s", "-for", "60s"),
		twice("server", "-database", "sqlite", "-part", "live,full,drain,metrics", "-origins", "100", "-backlog", "100", "-for", "20s"))
}
