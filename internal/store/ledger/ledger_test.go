package ledger_test

import (
	"testing"

	"mete.dev/mete/internal/testkit"
	"mete.dev/mete/internal/testkit/ledgertest"
)

func TestMain(m *testing.M) { ledgertest.Main(m) }

func TestSQLite(t *testing.T)     { ledgertest.Run(t, ledgertest.SQLite) }
func TestPostgreSQL(t *testing.T) { ledgertest.Run(t, ledgertest.PostgreSQL) }

// TestDrawn is TestSQLite with many more histories.
func TestDrawn(t *testing.T) {
	testkit.Stage(t, "drawn", "draws many histories")
	ledgertest.Draw(t, ledgertest.SQLite, 150)
}
