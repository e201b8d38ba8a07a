package shapes

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets a test run its own program as a child process.
func TestMain(m *testing.M) {
	if os.Getenv("SHAPES_CHILD") != "" {
		os.Exit(Unnamed(0, ""))
	}
	os.Exit(m.Run())
}

// caught returns what a function does that is deferred while there is a panic.
func caught() (n int) {
	defer Caught(&n)
	panic("to be caught")
}

func Test(t *testing.T) {
	if path, err := os.Executable(); err != nil || os.Getenv("SHAPES_FAILS") != "" && strings.HasPrefix(filepath.Base(path), "variants") {
		t.Fatalf("%s: told to, or %v", path, err)
	}
	if limit != 7 || begun != 8 {
		t.Error(limit, begun)
	}
	if n := Blank(1, 5); n != 3 {
		t.Error(n)
	}
	if n := Sum(1, 2, 3); n != 4 {
		t.Error(n)
	}
	if s := Least("a", 2, func(a, b int) bool { return a < b && a == 1 && b == 2 }); s != "a" {
		t.Error(s)
	}
	for n, unsupported := range map[int]bool{6: true, 7: true, 8: false, 9: false} {
		if err := Named(n); !errors.Is(err, errFailed) || errors.Is(err, errors.ErrUnsupported) != unsupported {
			t.Error(n, err)
		}
	}
	var s Stack[int]
	if s.Push(1); len(s.all) != 1 || s.Max() != 9 {
		t.Error(s.all, s.Max())
	}
	if n := Find([][]int{{1, 2, 2}, {2}, {2}}, 2); n != 3 {
		t.Error(n)
	}
	if n := caught(); n != 4 {
		t.Error(n)
	}
}

func TestChild(t *testing.T) {
	child := exec.Command(os.Args[0])
	child.Env = []string{"SHAPES_CHILD=1"}
	if child.Run(); child.ProcessState.ExitCode() != 1 {
		t.Error(child.ProcessState)
	}
}
