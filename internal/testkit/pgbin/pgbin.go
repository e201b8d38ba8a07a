// Package pgbin finds the PostgreSQL programs of this machine, for tests and benchmarks.
package pgbin

import (
	"cmp"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// Programs returns the directory of PostgreSQL's programs initdb and postgres: of the latest
// version, if they are not in PATH.
func Programs() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	// Debian and its derivatives keep them out of PATH, in a directory for each version.
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", errors.New("PostgreSQL's initdb is neither in PATH nor in /usr/lib/postgresql/*/bin: install PostgreSQL's server")
	}
	latest := slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(version(a), version(b)) })
	return filepath.Dir(latest), nil
}

// version returns the version in a path such as /usr/lib/postgresql/17/bin/initdb.
func version(path string) float64 {
	v, err := strconv.ParseFloat(filepath.Base(filepath.Dir(filepath.Dir(path))), 64)
	if err != nil {
		return 0
	}
	return v
}
