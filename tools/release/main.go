// Command release makes what a release consists of, for Linux on amd64 and arm64:
//
//	go run ./tools/release
//
// Into the directory dist go the programs as .tar.gz, as packages for Debian (.deb) and for RPM,
// and as images for container runtimes (docker load, podman load, ctr import); a Helm chart of these
// images; a bill of materials of each program (CycloneDX); and SHA256SUMS.
//
// Two runs for the same commit, in different directories and on different machines, make the same
// bytes: the time in all archives is that of the commit. So the tree must have no changes that are
// not committed. A commit with a tag such as v1.2.3 makes that version, another one a version that
// is named by its time and hash.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := parseFlags(os.Args[1:])
	if err == nil {
		err = c.run(ctx, os.Stdout)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// A config is the command line.
type config struct {
	out      string
	archs    []string
	formats  []string
	version  string // of the packages, in place of the programs'
	modified bool   // allows a tree with changes
}

var (
	architectures = []string{"amd64", "arm64"}
	formats       = []string{"tar", "deb", "rpm", "image", "chart", "sbom"}
)

func parseFlags(args []string) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	f.StringVar(&c.out, "out", "dist", "`directory` for the files, which must be empty or missing")
	archs := f.String("arch", strings.Join(architectures, ","), "architectures, separated by commas")
	kinds := f.String("format", strings.Join(formats, ","), "formats, separated by commas")
	f.StringVar(&c.version, "version", "", "`version` of the packages, such as 1.2.3 (default: the programs')")
	f.BoolVar(&c.modified, "modified", false, "allow a tree with changes that are not committed; then two runs may differ")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	var err error
	if c.archs, err = choices("-arch", *archs, architectures); err != nil {
		return nil, err
	}
	c.formats, err = choices("-format", *kinds, formats)
	return c, err
}

// choices splits a list, whose elements must be among the allowed ones.
func choices(name, list string, allowed []string) ([]string, error) {
	chosen := strings.Split(list, ",")
	for _, one := range chosen {
		if !slices.Contains(allowed, one) {
			return nil, fmt.Errorf("%s: %q is unknown; choose from %s", name, one, strings.Join(allowed, ", "))
		}
	}
	return chosen, nil
}

// run makes all files, and says which.
func (c *config) run(ctx context.Context, stdout io.Writer) error {
	if err := emptyDir(c.out); err != nil {
		return err
	}
	r, err := openSource(ctx, ".", c.modified)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mete-release-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	for _, arch := range c.archs {
		fmt.Fprintln(stdout, "building for", arch)
		b, err := r.build(ctx, arch, filepath.Join(tmp, arch))
		if err != nil {
			return err
		}
		if c.version != "" {
			b.version = c.version
		}
		if err := c.write(b); err != nil {
			return err
		}
	}
	return c.sum(stdout)
}

// write writes the files of one architecture.
func (c *config) write(b *built) error {
	writers := map[string]func(dir string) error{"tar": b.tarball, "deb": b.debs, "rpm": b.rpms, "image": b.images, "chart": b.chart, "sbom": b.sboms}
	for _, f := range c.formats {
		if err := writers[f](c.out); err != nil {
			return fmt.Errorf("%s for %s: %w", f, b.arch, err)
		}
	}
	return nil
}

// emptyDir makes a directory. It refuses one with files.
func emptyDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	es, err := os.ReadDir(dir)
	if err == nil && len(es) > 0 {
		return fmt.Errorf("%s is not empty: remove it, or choose another directory with -out", dir)
	}
	return err
}

// sum writes SHA256SUMS, and lists the files with their sizes.
func (c *config) sum(stdout io.Writer) error {
	es, err := os.ReadDir(c.out)
	if err != nil {
		return err
	}
	var sums strings.Builder
	for _, e := range es {
		b, err := os.ReadFile(filepath.Join(c.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(b), e.Name())
		fmt.Fprintf(stdout, "%8.1f MiB  %s\n", float64(len(b))/(1<<20), filepath.Join(c.out, e.Name()))
	}
	return os.WriteFile(filepath.Join(c.out, "SHA256SUMS"), []byte(sums.String()), 0o644)
}
