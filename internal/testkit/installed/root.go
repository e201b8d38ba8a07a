// Package installed installs the packages of a release in a virtual machine with Debian and
// systemd, as an operator does, and uses them there.
package installed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"mete.dev/mete/internal/model/fault"
)

// suite is the release of Debian in the virtual machine.
const suite = "bookworm"

// hostname is the name of the virtual machine.
const hostname = "mete-test"

// imageSize is the size of the root file system, most of which is empty.
const imageSize = 2 << 30

// root makes an image of a root file system with Debian and systemd, and with the files of a
// directory below /packages. The base system is kept in the user's cache directory: 230 MB, once.
func root(ctx context.Context, dir, packages string) (image string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	base := filepath.Join(cache, "mete-test", "debian-"+suite+".tar")
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		if err := download(ctx, base); err != nil {
			return "", err
		}
	}
	tree := filepath.Join(dir, "tree")
	if err := os.Mkdir(tree, 0o755); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tree)) }()
	if err := tool(ctx, "tar", "-xf", base, "-C", tree, "--exclude=./dev/*"); err != nil {
		return "", err
	}
	// The base system has the name of the machine on which it was made.
	if err := os.WriteFile(filepath.Join(tree, "etc", "hostname"), []byte(hostname+"\n"), 0o644); err != nil {
		return "", err
	}
	if err := os.CopyFS(filepath.Join(tree, "packages"), os.DirFS(packages)); err != nil {
		return "", err
	}
	image = filepath.Join(dir, "root.img")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, imageSize)); err != nil {
		return "", err
	}
	return image, tool(ctx, "mke2fs", "-q", "-t", "ext4", "-d", tree, image)
}

// download makes the base system from Debian's mirror.
func download(ctx context.Context, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	part := file + ".part"
	defer func() { _ = os.Remove(part) }() // gone unless it failed
	if err := tool(ctx, "mmdebstrap", "--quiet", "--format=tar", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps", suite, part); err != nil {
		return fault.WithHint(err, "as root: apt-get install mmdebstrap")
	}
	return os.Rename(part, file)
}

// tool runs a program of the system.
func tool(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", args[0], err, out)
	}
	return nil
}
