package ledger_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger"
)

// The error about an unknown kind of database does not show its password.
func TestUnknownDatabase(t *testing.T) {
	_, err := ledger.Open(t.Context(), "postgresx://u:DBSECRET@host/mete", ledger.Default(), slog.New(slog.DiscardHandler))
	if !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "postgresx") {
		t.Error(err)
	}
}
