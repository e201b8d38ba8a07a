package ledgertest

import (
	"database/sql"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"modernc.org/sqlite"
)

// undo has, for each migration since the sixth, the statements that undo it, as far as a later
// migration makes again what it makes.
var undo = map[int][]string{
	6:  {"DROP INDEX node_root", "ALTER TABLE node DROP COLUMN root"},
	7:  {"DROP TABLE unsampled"},
	8:  {"DROP TABLE booked", "DROP TABLE kernel_run", "ALTER TABLE node DROP COLUMN run"},
	9:  {"DROP TABLE outer_energy", "ALTER TABLE outer_minute DROP COLUMN before"},
	10: {"DROP TABLE node_quota"},
	13: {"DROP TABLE inner_range"},
	12: {
		"DROP TABLE nested_series", "DROP INDEX share_series_host", "ALTER TABLE share_series DROP COLUMN given", "ALTER TABLE share_series DROP COLUMN held",
		"ALTER TABLE share_series DROP COLUMN since_ns", "DROP TABLE within_day",
		"CREATE TABLE nested_day (node bigint NOT NULL, minute bigint NOT NULL, host bigint NOT NULL, workload bigint NOT NULL, rev bigint NOT NULL, PRIMARY KEY (node, minute))",
	},
	11: {"ALTER TABLE node DROP COLUMN certified_ns", "ALTER TABLE node DROP COLUMN key_hash", "ALTER TABLE node DROP COLUMN token", "ALTER TABLE token DROP COLUMN node"},
	14: {"DROP TABLE placed_boot", "DROP INDEX stream_seen", "ALTER TABLE node_quota DROP COLUMN streams", "ALTER TABLE node_quota DROP COLUMN batches",
		"ALTER TABLE node_quota DROP COLUMN ranges", "ALTER TABLE node_quota DROP COLUMN handovers"},
	15: {"ALTER TABLE kernel_run DROP COLUMN node", "ALTER TABLE kernel_run DROP COLUMN began_ns"},
	16: {"DROP TABLE token_use", "DROP INDEX node_key", "ALTER TABLE source DROP COLUMN key_hash", "ALTER TABLE source DROP COLUMN token"},
	17: {"DROP TABLE cluster_quota"},
	18: {"DROP TABLE extent_range", "CREATE TABLE inner_range (node bigint NOT NULL, boot text NOT NULL, from_ns bigint NOT NULL, to_ns bigint NOT NULL, offset_ns bigint NOT NULL, taken_ns bigint NOT NULL, PRIMARY KEY (node, boot, from_ns))"},
	20: {"DROP TABLE pod", "DROP TABLE pod_container", "DROP INDEX workload_pod", "DROP INDEX workload_placed", "DROP INDEX workload_in_pod"},
	21: {"DROP INDEX workload_version", "DROP INDEX workload_version_of", "ALTER TABLE workload DROP COLUMN from_minute", "ALTER TABLE workload DROP COLUMN version_of",
		"ALTER TABLE workload DROP COLUMN known_ns", "ALTER TABLE counter DROP COLUMN versions", uniqueWorkloads},
	22: {"DROP TABLE pod_lease"},
	23: {"DROP TABLE reservation", "DROP TABLE reservation_carrier", "DROP INDEX pod_right", "DROP INDEX pod_unsure", "DROP INDEX pod_node", "ALTER TABLE pod DROP COLUMN right_minute",
		"ALTER TABLE pod DROP COLUMN put_minute", "ALTER TABLE pod DROP COLUMN unsure", "ALTER TABLE pod_lease DROP COLUMN since_ns", "ALTER TABLE pod_lease DROP COLUMN seen_ns"},
	24: {"DROP TABLE slurm_job", "DROP TABLE slurm_read", "DROP INDEX workload_slurm", "DROP INDEX workload_slurm_named", "DROP INDEX workload_in_slurm"},
	25: {"DROP TABLE kube_job", "DROP INDEX workload_run", "DROP INDEX workload_run_job", "DROP INDEX pod_run", "ALTER TABLE pod DROP COLUMN run_uid", "ALTER TABLE pod DROP COLUMN run_name",
		"ALTER TABLE workload DROP COLUMN run", "ALTER TABLE workload DROP COLUMN run_name", "ALTER TABLE workload DROP COLUMN run_started_ns",
		"ALTER TABLE workload DROP COLUMN run_ended_ns", "ALTER TABLE workload DROP COLUMN run_exit"},
	26: {"ALTER TABLE pod DROP COLUMN volume", "ALTER TABLE pod_lease DROP COLUMN volumes_ns"},
	27: {"DROP TABLE topology"},
	28: {"DROP TABLE volume_use", "DROP INDEX pod_volume", "ALTER TABLE pod DROP COLUMN claims", "ALTER TABLE pod DROP COLUMN released_ns"},
	29: {"DROP TABLE connections"},
}

// uniqueWorkloads makes (node, short) unique again in table workload.
const uniqueWorkloads = "ALTER TABLE workload ADD CONSTRAINT workload_node_short_key UNIQUE (node, short)"

// makeUnique is uniqueWorkloads for SQLite, which only a new table can do.
func makeUnique(t testing.TB, db *sql.DB) {
	t.Helper()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	var was string
	if err := conn.QueryRowContext(t.Context(), "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = 'workload'").Scan(&was); err != nil {
		t.Fatal(err)
	}
	var indexes []string
	reader{t, db}.rows(func(row map[string]any) { indexes = append(indexes, row["sql"].(string)) }, "SELECT sql FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'workload' AND sql IS NOT NULL")
	end := strings.LastIndex(was, ")")
	table := "CREATE TABLE older " + was[strings.Index(was, "("):end] + ",\n\tUNIQUE (node, short)\n" + was[end:]
	for _, do := range append([]string{"PRAGMA foreign_keys = 0", table, "INSERT INTO older SELECT * FROM workload", "DROP TABLE workload", "ALTER TABLE older RENAME TO workload"}, indexes...) {
		if _, err := conn.ExecContext(t.Context(), do); err != nil {
			t.Fatalf("%s: %v", do, err)
		}
	}
}

// UndoMigrations gives a closed ledger the schema of an older program, which has migrations up to the
// given number.
func UndoMigrations(t testing.TB, db *sql.DB, version int) {
	t.Helper()
	var statements []string
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(undo))) {
		if n > version {
			statements = append(statements, undo[n]...)
		}
	}
	for _, do := range append(statements, "UPDATE meta SET value = '"+strconv.Itoa(version)+"' WHERE key = 'ledger.schema'") {
		if _, isSQLite := db.Driver().(*sqlite.Driver); isSQLite && do == uniqueWorkloads {
			makeUnique(t, db)
			continue
		}
		if _, err := db.ExecContext(t.Context(), do); err != nil {
			t.Fatalf("%s: %v", do, err)
		}
	}
}
