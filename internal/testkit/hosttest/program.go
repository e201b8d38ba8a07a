package hosttest

import (
	"os/exec"
	"testing"
)

// Program returns the path of a program that is a requirement of its name, see [Need].
func Program(t testing.TB, name string) string {
	t.Helper()
	Need(t, name)
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
