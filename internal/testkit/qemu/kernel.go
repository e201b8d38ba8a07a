package qemu

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mete.dev/mete/internal/model/fault"
)

// A Kernel is a kernel that a guest can run.
type Kernel struct {
	Image   string // its file
	modules map[string]string
	builtin []string
}

// debian is the package that depends on Debian's newest kernel with 9p, which the one for
// clouds lacks.
const debian = "linux-image-amd64"

// FindKernel returns a kernel of this machine with the features that guests need, or
// downloads Debian's into the user's cache directory: 70 MB, once. It installs nothing.
func FindKernel(ctx context.Context) (*Kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "mete-test", "linux")
	for _, root := range []string{"/", cache} {
		if k, err := findIn(root); err == nil {
			return k, nil
		}
	}
	if err := fetch(ctx, cache); err != nil {
		return nil, fault.WithHint(fmt.Errorf("kernel for guests: %w", err), "install one: apt-get install "+debian)
	}
	return findIn(cache)
}

// findIn returns the newest kernel below a directory.
func findIn(root string) (*Kernel, error) {
	images, err := filepath.Glob(filepath.Join(root, "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(images)
	for _, image := range slices.Backward(images) {
		_, release, _ := strings.Cut(filepath.Base(image), "-")
		k := &Kernel{Image: image, modules: map[string]string{}}
		dir := filepath.Join(root, "lib", "modules", release)
		if err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if name, _, ok := strings.Cut(filepath.Base(p), ".ko"); ok && err == nil && !d.IsDir() {
				k.modules[kernelName(name)] = p
			}
			return err
		}); err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join(dir, "modules.builtin")); err == nil {
			for p := range strings.FieldsSeq(string(b)) {
				name, _, _ := strings.Cut(filepath.Base(p), ".ko")
				k.builtin = append(k.builtin, kernelName(name))
			}
		}
		if _, err := k.load(wantedModules); err == nil {
			return k, nil
		}
	}
	return nil, fmt.Errorf("a kernel with 9p and vsock in %s: %w", root, fault.ErrNotFound)
}

// kernelName returns the name of a module as in the kernel.
func kernelName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// fetch unpacks Debian's kernel into a directory.
func fetch(ctx context.Context, dir string) (err error) {
	out, err := exec.CommandContext(ctx, "apt-cache", "depends", debian).Output()
	if err != nil {
		return fmt.Errorf("apt-cache depends %s: %w", debian, err)
	}
	m := regexp.MustCompile(`Depends: (linux-image-\S+)`).FindSubmatch(out)
	if m == nil {
		return fmt.Errorf("apt-cache depends %s: no package in %q", debian, out)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "fetch-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := tool(ctx, tmp, "apt-get", "download", string(m[1])); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return errors.Join(err, fmt.Errorf("apt-get download %s gave %q", m[1], debs))
	}
	unpacked := filepath.Join(tmp, "root")
	if err := tool(ctx, tmp, "dpkg-deb", "-x", debs[0], unpacked); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(unpacked, dir)
}

// tool runs a program of the system.
func tool(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// wantedModules are the modules for the devices of guests.
var wantedModules = []string{"virtio_pci", "virtio_blk", "virtio_console", "virtio_rng", "virtio_net", "9pnet_virtio", "9p", "vmw_vsock_virtio_transport", "vsock_loopback"}

// A module is an uncompressed module.
type module struct {
	name string
	code []byte
}

// load returns modules and their dependencies, in loading order.
func (k *Kernel) load(names []string) (all []module, err error) {
	var add func(name string) error
	add = func(name string) error {
		name = kernelName(name)
		if slices.Contains(k.builtin, name) || slices.ContainsFunc(all, func(m module) bool { return m.name == name }) {
			return nil
		}
		file, ok := k.modules[name]
		if !ok {
			return fmt.Errorf("module %s: %w", name, fault.ErrNotFound)
		}
		code, err := unpack(file)
		if err != nil {
			return err
		}
		needs, err := depends(code)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		all = append(all, module{name, code})
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// unpack reads a module and decompresses it if needed.
func unpack(file string) ([]byte, error) {
	for suffix, program := range map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"} {
		if strings.HasSuffix(file, suffix) {
			return exec.Command(program, "-dc", file).Output()
		}
	}
	return os.ReadFile(file)
}

// depends returns the dependencies of a module, from its section .modinfo.
func depends(code []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(code))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for e := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(e, []byte("depends=")); ok && len(list) > 0 {
			return strings.Split(string(list), ","), nil
		}
	}
	return nil, nil
}
