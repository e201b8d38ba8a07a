package cli_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/ui/cli"
)

func TestCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{fmt.Errorf("reader %q: %w", "x", fault.ErrInvalid), 2},
		{fault.WithHint(fmt.Errorf("job: %w", fault.ErrNotFound), "look"), 3},
		{errors.Join(errors.New("x"), fault.ErrDenied), 4},
		{fault.ErrUnsupported, 5},
		{fault.ErrUnavailable, 6},
		{fmt.Errorf("tick: %w", context.Canceled), 130},
	} {
		if got := cli.Code(c.err); got != c.want {
			t.Errorf("Code(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestExplain(t *testing.T) {
	var b strings.Builder
	cli.Explain(&b, "mete", fault.WithHint(errors.New("port 9797: in use"), "try --listen"))
	cli.Explain(&b, "mete", fmt.Errorf("tick 2: %w", context.Canceled))
	const want = "mete: error: port 9797: in use\nhint: try --listen\nmete: error: interrupted\n"
	if got := b.String(); got != want {
		t.Errorf("Explain wrote %q, want %q", got, want)
	}
}
