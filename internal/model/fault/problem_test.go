package fault_test

import (
	"errors"
	"fmt"
	"testing"

	"mete.dev/mete/internal/model/fault"
)

// TestProblem checks that an error of each kind round-trips.
func TestProblem(t *testing.T) {
	for _, kind := range []error{fault.ErrNotFound, fault.ErrInvalid, fault.ErrConflict, fault.ErrUnsupported, fault.ErrUnavailable, fault.ErrDenied} {
		sent := fault.WithHint(fmt.Errorf("stream 7: %w", kind), "try the next one")
		p := fault.ProblemOf(sent)
		got := p.Err()
		if !errors.Is(got, kind) || got.Error() != sent.Error() || fault.Hint(got) != "try the next one" {
			t.Errorf("%v arrives as %v with the hint %q", sent, got, fault.Hint(got))
		}
		if again := fault.ProblemOf(got); again != p {
			t.Errorf("%v is passed on as %v", p, again)
		}
	}
	if p := fault.ProblemOf(errors.New("the password is 1234")); p.Status != 500 || p.Detail != "" {
		t.Errorf("an error of no kind travels as %+v", p)
	}
	for status, kind := range map[int]error{401: fault.ErrDenied, 413: fault.ErrInvalid, 429: fault.ErrUnavailable, 500: fault.ErrUnavailable, 404: fault.ErrNotFound, 0: fault.ErrUnavailable} {
		if err := (fault.Problem{Status: status}).Err(); !errors.Is(err, kind) || err.Error() == "" {
			t.Errorf("status %d alone is %q, want %v", status, err, kind)
		}
	}
}
