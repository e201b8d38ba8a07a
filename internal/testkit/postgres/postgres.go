// Package postgres finds the PostgreSQL of this machine, for tests and benches.
package postgres

import (
	"errors"
	"os/exec"
	"path/filepath"
)

// Programs is the directory of PostgreSQL's programs: initdb and postgres.
func Programs() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(p), nil
	}
	// Debian and its kin keep them out of PATH, as there may be several.
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err == nil && len(found) == 0 {
		err = errors.New("PostgreSQL's initdb is not installed")
	}
	if err != nil {
		return "", err
	}
	return filepath.Dir(found[len(found)-1]), nil
}
