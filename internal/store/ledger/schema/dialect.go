package schema

import "strings"

// A Dialect is what differs between the databases.
type Dialect struct {
	Name     string
	Words    *strings.Replacer // for those in braces of the schema
	Greatest string            // the function of two values
	// folds says that rows of any kind can be summed by a query. SQLite has
	// no aggregate for bits, and none that stays at the largest value, but takes
	// rows one after another where they conflict with one another.
	Aggregates    bool
	MigrationLock string // what keeps other programs from migrating at the same time
	// reading begins a view, dropping the dropping of a table: a reader that
	// knows of a table finds it. SQLite's readers see what was there anyway.
	BeginView, BeginDrop string
	SizeQuery            string // asks for the bytes of the database
}

var SQLite = &Dialect{
	Name: "sqlite",
	Words: strings.NewReplacer("{int}", "INTEGER", "{blob}", "BLOB", "{id}", "INTEGER PRIMARY KEY",
		"{strict}", "STRICT", "{keyed}", "STRICT, WITHOUT ROWID",
		"{group}", "minute, "+strings.Join(GroupKeys, ", ")+", present, rough"),
	Greatest:  "max",
	SizeQuery: "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
}

var PostgreSQL = &Dialect{
	Name: "postgres",
	Words: strings.NewReplacer("{int}", "bigint", "{blob}", "bytea", "{id}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"{strict}", "", "{keyed}", "",
		"{group}", "minute, "+hashed(GroupKeys)+", present, rough"),
	Greatest:      "greatest",
	Aggregates:    true,
	MigrationLock: "SELECT pg_advisory_xact_lock(7308604897068083558)", // "mete ledg" as a number, of no meaning
	// LOCK takes no snapshot, so what is read is as it is once there is the lock.
	// A reader that is slow is not waited for, as others wait behind: days can be
	// dropped a minute later.
	BeginView: "LOCK TABLE kept IN ACCESS SHARE MODE",
	BeginDrop: "SET LOCAL lock_timeout = '300ms'; LOCK TABLE kept IN ACCESS EXCLUSIVE MODE",
	SizeQuery: `SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bigint) FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'`,
}

// hashed is SQL for a hash of some columns of text, together: in an index, texts
// have less room than they may be long.
func hashed(columns []string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = "length(" + c + ")::text || ':' || " + c
	}
	return "md5(" + strings.Join(parts, " || ") + ")"
}
