package ca

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRequestGivenUp checks that unexpected errors are logged, except those of canceled requests.
func TestRequestGivenUp(t *testing.T) {
	for _, gone := range []bool{false, true} {
		var log strings.Builder
		a := &Authority{log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, leave := context.WithCancel(t.Context())
		if gone {
			leave()
		}
		a.writeProblem(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/v1/renew", nil), context.Canceled)
		leave()
		if told := strings.Contains(log.String(), "request failed"); told == gone {
			t.Errorf("the sender has gone: %v; log %q", gone, &log)
		}
	}
}
