package ledger_test

import (
	"testing"

	"mete.dev/mete/internal/store/ledger/ledgertest"
)

func TestMain(m *testing.M) { ledgertest.Main(m) }

func TestSQLite(t *testing.T)     { ledgertest.Run(t, ledgertest.SQLite) }
func TestPostgreSQL(t *testing.T) { ledgertest.Run(t, ledgertest.PostgreSQL) }
