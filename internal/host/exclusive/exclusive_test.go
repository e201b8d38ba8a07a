package exclusive_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/host/exclusive"
	"mete.dev/mete/internal/host/hostfs"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/testkit/otheruser"
)

func TestMain(m *testing.M) {
	otheruser.Main()
	os.Exit(m.Run())
}

// conflicts returns the error of Conflicts.
func conflicts(c *exclusive.Claim) error {
	_, err := c.Conflicts()
	return err
}

// Within a ledger nothing is claimed twice; ledgers are independent.
func TestClaim(t *testing.T) {
	h, err := hostfs.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	one, two := fmt.Sprintf("%016x", os.Getpid()), fmt.Sprintf("f%015x", os.Getpid())
	claimed := func(ledger string, s exclusive.Scope) *exclusive.Claim {
		t.Helper()
		c, err := exclusive.Acquire(h, ledger, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // may be closed already
		return c
	}
	whole := claimed(one, exclusive.Machine)
	if err := conflicts(whole); err != nil {
		t.Fatal(err)
	}
	wantConflict := func(what string, err error) *exclusive.ConflictError {
		t.Helper()
		by, ok := errors.AsType[*exclusive.ConflictError](err)
		if !ok || !errors.Is(err, fault.ErrConflict) {
			t.Fatalf("%s: %v", what, err)
		}
		if by.Holders[0].PID != os.Getpid() || int(by.Holders[0].UID) != os.Getuid() || !strings.Contains(err.Error(), by.Holders[0].String()) {
			t.Errorf("%s: %v, by %+v", what, err, by.Holders)
		}
		return by
	}
	_, err = exclusive.Acquire(h, one, exclusive.Machine)
	if by := wantConflict("the machine again", err); by.Holders[0].Scope != exclusive.Machine {
		t.Errorf("by %+v", by.Holders)
	}
	if err := conflicts(claimed(two, exclusive.Machine)); err != nil {
		t.Errorf("claim for another ledger: %v", err)
	}

	job := claimed(one, exclusive.Scope{Path: "/a/mete-run-1"})
	if _, ok := wantConflict("a job", conflicts(job)).MachineHolder(); !ok {
		t.Error("MachineHolder found none")
	}
	tree := claimed(one, exclusive.Scope{Path: "/a", Tree: os.Getpid()})
	if by := wantConflict("a tree", conflicts(tree)); len(by.Holders) != 1 {
		t.Errorf("by %+v, want the machine alone", by.Holders)
	}
	if by := wantConflict("the machine", conflicts(whole)); len(by.Holders) != 2 {
		t.Errorf("by %+v, want the job and the tree", by.Holders)
	}

	// A closed claim is free at once.
	if err := errors.Join(whole.Close(), tree.Close()); err != nil {
		t.Fatal(err)
	}
	if err := conflicts(job); err != nil {
		t.Error(err)
	}
	beside := claimed(one, exclusive.Scope{Path: "/a/mete-run-2"})
	if err := conflicts(beside); err != nil {
		t.Error(err)
	}
	again := claimed(one, exclusive.Machine)
	if by := wantConflict("the machine", conflicts(again)); len(by.Holders) != 2 {
		t.Errorf("by %+v, want both jobs", by.Holders)
	}
	if _, ok := wantConflict("the machine", conflicts(again)).MachineHolder(); ok {
		t.Error("MachineHolder returned a job")
	}
	inner := claimed(one, exclusive.Scope{Path: "/a/mete-run-2/b/mete-run-3"})
	if by := wantConflict("a job in a job", conflicts(inner)); len(by.Holders) != 2 { // the machine, and the job
		t.Errorf("by %+v", by.Holders)
	}
}
