// Package nvmltest builds a stub of NVIDIA's management library for tests. It has not been
// compared with a real accelerator.
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

// Main is a TestMain that makes the test binary mete-nvml if METE_TEST_NVML is set.
func Main(m *testing.M) {
	if os.Getenv("METE_TEST_NVML") != "" {
		if err := nvml.Serve(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// Stub compiles the stub and makes processes started afterwards load it. Its environment
// configures it, see testdata/stub.c.
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
