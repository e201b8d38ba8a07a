// Package nvmltest makes a stub of NVIDIA's management library for tests. No test
// with it has met a real accelerator.
package nvmltest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"mete.dev/mete/internal/host/nvml"
	"mete.dev/mete/internal/testkit/hosttest"
)

//go:embed testdata/stub.c
var stub []byte

// Main is a TestMain that lets the test binary be mete-nvml, where METE_TEST_NVML
// is set.
func Main(m *testing.M) {
	if os.Getenv("METE_TEST_NVML") != "" {
		if err := nvml.Serve(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// Stub compiles the stub and lets processes that start from now on find it. What
// it plays is said by its environment, as testdata/stub.c tells.
func Stub(t *testing.T) {
	t.Helper()
	hosttest.Need(t, "gcc")
	dir := t.TempDir()
	source := filepath.Join(dir, "stub.c")
	if err := os.WriteFile(source, stub, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}
