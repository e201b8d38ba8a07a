package claim_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"mete.dev/mete/internal/claim"
	"mete.dev/mete/internal/fault"
	"mete.dev/mete/internal/host"
)

// Of one ledger nothing is claimed twice; ledgers do not know of each other.
func TestClaim(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	one, two := fmt.Sprintf("%016x", os.Getpid()), fmt.Sprintf("f%015x", os.Getpid())
	claimed := func(ledger string, s claim.Scope) *claim.Claim {
		t.Helper()
		c, err := claim.Make(h, ledger, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() }) // may be closed already
		return c
	}
	whole := claimed(one, claim.Machine)
	if err := whole.Others(); err != nil {
		t.Fatal(err)
	}
	taken := func(what string, err error) *claim.Taken {
		t.Helper()
		by, ok := errors.AsType[*claim.Taken](err)
		if !ok || !errors.Is(err, fault.ErrConflict) {
			t.Fatalf("%s: %v", what, err)
		}
		if by.By[0].PID != os.Getpid() || int(by.By[0].UID) != os.Getuid() || !strings.Contains(err.Error(), by.By[0].String()) {
			t.Errorf("%s: %v, by %+v", what, err, by.By)
		}
		return by
	}
	_, err = claim.Make(h, one, claim.Machine)
	if by := taken("the machine again", err); by.By[0].Scope != claim.Machine {
		t.Errorf("by %+v", by.By)
	}
	if err := claimed(two, claim.Machine).Others(); err != nil {
		t.Errorf("another ledger: %v", err)
	}

	job := claimed(one, claim.Scope{Path: "/a/mete-run-1"})
	if _, ok := taken("a job", job.Others()).Whole(); !ok {
		t.Error("it does not say that the machine is measured")
	}
	tree := claimed(one, claim.Scope{Path: "/a", Tree: os.Getpid()})
	if by := taken("a tree", tree.Others()); len(by.By) != 1 {
		t.Errorf("by %+v, want the machine alone", by.By)
	}
	if by := taken("the machine", whole.Others()); len(by.By) != 2 {
		t.Errorf("by %+v, want the job and the tree", by.By)
	}

	// What is given up is free at once.
	if err := errors.Join(whole.Close(), tree.Close()); err != nil {
		t.Fatal(err)
	}
	if err := job.Others(); err != nil {
		t.Error(err)
	}
	beside := claimed(one, claim.Scope{Path: "/a/mete-run-2"})
	if err := beside.Others(); err != nil {
		t.Error(err)
	}
	again := claimed(one, claim.Machine)
	if by := taken("the machine", again.Others()); len(by.By) != 2 {
		t.Errorf("by %+v, want both jobs", by.By)
	}
	if _, ok := taken("the machine", again.Others()).Whole(); ok {
		t.Error("a job is taken for the machine")
	}
	inner := claimed(one, claim.Scope{Path: "/a/mete-run-2/b/mete-run-3"})
	if by := taken("a job in a job", inner.Others()); len(by.By) != 2 { // the machine, and the job
		t.Errorf("by %+v", by.By)
	}
}
