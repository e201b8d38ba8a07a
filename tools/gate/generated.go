package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// compiled are the packages whose generated files need compilers other than Go's. Each has
// a file generated.sum with the checksums of the compilers' inputs and outputs, so that the
// compilers are needed only after a change.
var compiled = []string{"./internal/host/bpf", "./proto"}

// compilers are the Debian packages of those compilers.
var compilers = []string{"clang-19", "libbpf-dev", "llvm-19", "protobuf-compiler"}

// generated generates the files again and compares. It keeps the new ones, ready to commit.
// Compiled files are generated only if their sources or results changed.
func generated(sh *shell) error {
	var packages []string
	for _, dir := range compiled {
		check := sh.command("sha256sum", "--check", "--quiet", "--strict", "generated.sum")
		check.Dir = dir
		check.Stdout, check.Stderr = &sh.out, &sh.out
		if sh.wait(check) != nil {
			packages = append(packages, dir)
		}
	}
	if len(packages) > 0 {
		if err := install(sh, compilers); err != nil {
			return err
		}
	}
	all, err := sh.lines("go", "list", "./...")
	if err != nil {
		return err
	}
	for _, p := range all {
		if dir := "./" + strings.TrimPrefix(p, module); !slices.Contains(compiled, dir) {
			packages = append(packages, dir)
		}
	}
	return generate(sh, packages)
}

// regenerate generates all files again, including compiled ones.
func regenerate(sh *shell) error { return generate(sh, []string{"./..."}) }

func generate(sh *shell, packages []string) error {
	before, err := hashes(sh)
	if err != nil {
		return err
	}
	if err := sh.do("go", append([]string{"generate"}, packages...)...); err != nil {
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
		return fmt.Errorf("go generate changed %s; commit the result", strings.Join(changed, ", "))
	}
	return nil
}

// hashes returns a checksum of each file that git tracks or would track.
func hashes(sh *shell) (map[string][sha256.Size]byte, error) {
	list, err := sh.output("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}
	sums := map[string][sha256.Size]byte{}
	for name := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, but still in the index
		} else if err != nil {
			return nil, err
		}
		sums[name] = sha256.Sum256(b)
	}
	return sums, nil
}
