package testbed

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Versions of what is not in the module testbed. Their own modules have no replace lines, so that go install
// builds each with the dependencies that it was released with.
const (
	containerd = "github.com/containerd/containerd/v2/cmd/%s@v2.4.2"
	plugins    = "github.com/containernetworking/plugins/plugins/%s@v1.9.1"
	kwok       = "sigs.k8s.io/kwok@v0.8.0"
	helm       = "helm.sh/helm/v4/cmd/helm@v4.3.1"
	metrics    = "sigs.k8s.io/metrics-server/cmd/metrics-server@v0.9.0"
)

// A part is a set of programs that are built together, into one directory.
type part struct {
	name  string
	build func(b *builder) error
}

// parts are those of each kind of cluster.
var parts = map[Kind][]part{
	API:  {{"kubernetes", (*builder).kubernetes}},
	Sim:  {{"kubernetes", (*builder).kubernetes}, {"kwok", (*builder).kwok}},
	Real: {{"kubernetes", (*builder).kubernetes}, {"node", (*builder).node}},
}

// helmParts is Helm; its name has the version, as other programs do not depend on that.
var helmParts = []part{{"helm-" + versionOf(helm), (*builder).helm}}

// peerParts are programs that measure pods, as mete does, besides the kubelet. cAdvisor's package is in the module testbed.
var peerParts = []part{{"metrics-server-" + versionOf(metrics), (*builder).metricsServer}, {"cadvisor", (*builder).cadvisor}}

func versionOf(pinned string) string { return pinned[strings.LastIndex(pinned, "@")+1:] }

// Build builds the programs that a kind of cluster needs, except those that were built before, and returns
// their directory in the user's cache. The first time takes minutes.
func Build(kind Kind, progress func(format string, args ...any)) (bin string, err error) {
	return build(parts[kind], progress)
}

func build(parts []part, progress func(format string, args ...any)) (bin string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	b := &builder{source: filepath.Join(root, "testbed")}
	key := sha256.New()
	for _, file := range []string{"go.mod", "go.sum", "cadvisor/main.go"} {
		text, err := os.ReadFile(filepath.Join(b.source, file))
		if err != nil {
			return "", err
		}
		key.Write(text)
	}
	key.Write([]byte(containerd + plugins + kwok + runtime.Version()))
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	b.bin = filepath.Join(cache, "mete-testbed", fmt.Sprintf("%.8x", key.Sum(nil)))
	if err := os.MkdirAll(filepath.Join(b.bin, "cni"), 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(b.bin, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // the lock ends with it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	for _, p := range parts {
		done := filepath.Join(b.bin, "has-"+p.name)
		if _, err := os.Stat(done); err == nil {
			continue
		}
		progress("building %s for a test cluster: this takes minutes, once", p.name)
		if err := p.build(b); err != nil {
			return "", fmt.Errorf("%s: %w", p.name, err)
		}
		if err := os.WriteFile(done, nil, 0o644); err != nil {
			return "", err
		}
	}
	return b.bin, nil
}

// moduleRoot returns the directory of this module.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// A builder builds programs.
type builder struct{ source, bin string }

// goCommand runs a command of go in the module testbed, for a program without a dynamic loader.
func (b *builder) goCommand(env []string, args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	cmd.Dir = b.source
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath"), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out, nil
}

// kubernetes builds the tools of the module: etcd and the programs of Kubernetes, which say its version.
func (b *builder) kubernetes() error {
	v, err := b.goCommand(nil, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	version := strings.TrimSpace(string(v))
	numbers := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(numbers) != 3 {
		return fmt.Errorf("k8s.io/kubernetes has version %q", version)
	}
	var flags strings.Builder
	flags.WriteString("-s -w")
	for name, value := range map[string]string{"gitVersion": version, "gitMajor": numbers[0], "gitMinor": numbers[1], "gitTreeState": "clean", "gitCommit": "module", "buildDate": "2026-01-01T00:00:00Z"} {
		flags.WriteString(" -X k8s.io/component-base/version." + name + "=" + value)
	}
	if _, err := b.goCommand(nil, "build", "-ldflags", flags.String(), "-o", b.bin+"/", "tool"); err != nil {
		return err
	}
	return os.Rename(filepath.Join(b.bin, "server"), filepath.Join(b.bin, "etcd")) // its package is called so
}

// node builds containerd with its shim, and plugins for the network of pods.
func (b *builder) node() error {
	install := func(dir string, args []string, pattern string, names ...string) error {
		args = append([]string{"install", "-ldflags", "-s -w"}, args...)
		for _, n := range names {
			args = append(args, fmt.Sprintf(pattern, n))
		}
		_, err := b.goCommand([]string{"GOBIN=" + dir}, args...)
		return err
	}
	return errors.Join(install(b.bin, []string{"-tags", "no_btrfs no_zfs no_devmapper no_aufs"}, containerd, "containerd", "ctr", "containerd-shim-runc-v2"),
		install(filepath.Join(b.bin, "cni"), nil, plugins, "main/bridge", "main/loopback", "ipam/host-local", "meta/portmap"))
}

// helm builds Helm.
func (b *builder) helm() error {
	_, err := b.goCommand([]string{"GOBIN=" + b.bin}, "install", "-ldflags", "-s -w", helm)
	return err
}

// metricsServer builds metrics-server.
func (b *builder) metricsServer() error {
	_, err := b.goCommand([]string{"GOBIN=" + b.bin}, "install", "-ldflags", "-s -w", metrics)
	return err
}

// cadvisor builds cAdvisor.
func (b *builder) cadvisor() error {
	_, err := b.goCommand(nil, "build", "-ldflags", "-s -w", "-o", b.bin+"/", "./cadvisor")
	return err
}

// kwok builds kwok, and writes its configuration: how simulated nodes and pods behave is in YAML files of its
// module.
func (b *builder) kwok() error {
	module, version, _ := strings.Cut(kwok, "@")
	if _, err := b.goCommand([]string{"GOBIN=" + b.bin}, "install", "-ldflags", "-s -w", module+"/cmd/kwok@"+version); err != nil {
		return err
	}
	out, err := b.goCommand([]string{"GOFLAGS="}, "mod", "download", "-json", kwok)
	if err != nil {
		return err
	}
	var got struct{ Dir string }
	if err := json.Unmarshal(out, &got); err != nil {
		return err
	}
	var config strings.Builder
	config.WriteString("apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokConfiguration\noptions: {nodeLeaseParallelism: 8, podPlayStageParallelism: 16, nodePlayStageParallelism: 8}\n")
	for _, file := range []string{"stage/node/fast/node-initialize.yaml", "stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
		"stage/pod/fast/pod-ready.yaml", "stage/pod/fast/pod-complete.yaml", "stage/pod/fast/pod-delete.yaml"} {
		text, err := os.ReadFile(filepath.Join(got.Dir, "kustomize", file))
		if err != nil {
			return err
		}
		config.WriteString("---\n" + string(text))
	}
	return os.WriteFile(filepath.Join(b.bin, "kwok.yaml"), []byte(config.String()), 0o644)
}
