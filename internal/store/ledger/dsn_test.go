package ledger_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/store/ledger"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// The error about an unknown kind of database does not show its password.
func TestUnknownDatabase(t *testing.T) {
	_, err := ledger.Open(t.Context(), "postgresx://u:DBSECRET@host/mete", ledger.Default(), slog.New(slog.DiscardHandler))
	if !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "postgresx") {
		t.Error(err)
	}
}

// TestCheckFails checks that a ledger that cannot be opened or read is not called sound.
func TestCheckFails(t *testing.T) {
	progress := func(ledger.CheckProgress) {}
	missing := filepath.Join(t.TempDir(), "missing.db")
	if r, err := ledger.Check(t.Context(), missing, progress); err == nil || r != nil {
		t.Errorf("a file that does not exist: %+v, %v", r, err)
	}
	dsn := ledgertest.SQLite(t)
	f := ledgertest.Fill(t, ledgertest.Open(t, dsn))
	f.Must(f.L.Fold(t.Context(), ledgertest.Day.AddDate(0, 0, 3)))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := ledger.Check(ctx, dsn, func(ledger.CheckProgress) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %+v, %v", r, err)
	}
}
