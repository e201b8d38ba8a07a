package fault_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/model/fault"
)

func TestRetryAfter(t *testing.T) {
	wait := fmt.Errorf("server: %w", &fault.RetryError{Err: fault.ErrUnavailable, After: time.Minute})
	if d, ok := fault.RetryAfter(wait); !ok || d != time.Minute || !errors.Is(wait, fault.ErrUnavailable) {
		t.Errorf("RetryAfter(%v) = %v, %v", wait, d, ok)
	}
	for _, err := range []error{nil, fault.ErrUnavailable, &fault.RetryError{Err: fault.ErrUnavailable}} {
		if d, ok := fault.RetryAfter(err); ok || d != 0 {
			t.Errorf("RetryAfter(%v) = %v, %v", err, d, ok)
		}
	}
}
