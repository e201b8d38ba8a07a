// Package postgres finds the PostgreSQL programs of this machine, for tests and benchmarks.
package postgres

import (
	"errors"
	"os/exec"
	"path/filepath"
)

// Programs returns the directory of PostgreSQL's programs: initdb and postgres.
func Programs() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	// Debian and its derivatives keep them out of PATH, since there may be several
	// versions.
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err == nil && len(found) == 0 {
		err = errors.New("PostgreSQL's initdb is not installed")
	}
	if err != nil {
		return "", err
	}
	return filepath.Dir(found[len(found)-1]), nil
}
