package main

import (
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// programs are what is built, by directory in cmd.
var programs = []string{"mete", "mete-agent", "mete-nvml", "mete-server"}

// A source is a tree of the project at a commit.
type source struct {
	root string
	time time.Time // of the commit
}

// openSource finds the tree that contains a directory. It refuses one with changes unless
// modified is set.
func openSource(ctx context.Context, dir string, modified bool) (*source, error) {
	root, err := output(ctx, dir, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	changes, err := output(ctx, root, "git", "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if changes != "" && !modified {
		first, _, _ := strings.Cut(changes, "\n")
		return nil, fmt.Errorf("%s has changes that are not committed (%s): commit them, or use -modified", root, strings.TrimSpace(first))
	}
	text, err := output(ctx, root, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return nil, err
	}
	unix, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("time of the commit: %w", err)
	}
	return &source{root, time.Unix(unix, 0).UTC()}, nil
}

// output runs a program and returns what it prints.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// A built is the programs for an architecture, and what is packed with them.
type built struct {
	*source
	arch    string
	version string // without the leading v
	files   map[string][]byte
	infos   map[string]*buildinfo.BuildInfo
}

// build builds all programs into a directory.
func (s *source) build(ctx context.Context, arch, dir string) (*built, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	args := []string{"build", "-trimpath", "-buildvcs=true", "-mod=readonly", "-ldflags=-s -w", "-o", dir + "/"}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.root
	// Flags and variables of the caller must not change the result.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOFIPS140=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build for %s: %w\n%s", arch, err, out)
	}
	b := &built{source: s, arch: arch, files: map[string][]byte{}, infos: map[string]*buildinfo.BuildInfo{}}
	for _, p := range programs {
		file := filepath.Join(dir, p)
		var err error
		if b.files[p], err = os.ReadFile(file); err != nil {
			return nil, err
		}
		if b.infos[p], err = buildinfo.ReadFile(file); err != nil {
			return nil, err
		}
	}
	b.version = strings.TrimPrefix(b.infos["mete"].Main.Version, "v")
	if b.version == "" || b.version == "(devel)" {
		return nil, errors.New("the programs have no version: build from a git repository")
	}
	return b, nil
}

// text reads a file of the project.
func (b *built) text(path string) ([]byte, error) { return os.ReadFile(filepath.Join(b.root, path)) }
