package table

import (
	"fmt"

	v1 "mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/unit"
)

// BackupText describes a backup.
func BackupText(b v1.Backup) string {
	ledger := "ledger " + unit.Bytes(float64(b.Ledger))
	if b.ExternalLedger {
		ledger = "no ledger, which is in PostgreSQL: copy it now, with pg_dump"
	}
	return fmt.Sprintf("%s: metrics %s, %s, in %.1f s\n", b.Dir, unit.Bytes(float64(b.Metrics)), ledger, b.Took.Seconds())
}
