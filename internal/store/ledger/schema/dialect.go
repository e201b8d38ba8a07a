package schema

import "strings"

// A Dialect holds the differences between the databases.
type Dialect struct {
	Name     string
	Words    *strings.Replacer // of placeholders in braces in the schema files
	Greatest string            // SQL function for the greater of two values
	// Aggregates says that one query can sum rows of any kind. SQLite cannot: it has no aggregate
	// for bits and none that saturates. It merges rows one by one in the conflict clause.
	Aggregates    bool
	MigrationLock string // keeps other processes from migrating at the same time
	// BeginView begins a view and BeginDrop the dropping of a table, so that a reader finds every
	// table it knows of. SQLite readers have snapshots of the schema.
	BeginView, BeginDrop string
	SizeQuery            string // returns the size of the database in bytes
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
		"{group}", "minute, "+hashSQL(GroupKeys)+", present, rough"),
	Greatest:      "greatest",
	Aggregates:    true,
	MigrationLock: "SELECT pg_advisory_xact_lock(7308604897068083558)", // an arbitrary number
	// LOCK takes no snapshot, so reads see the state after the lock is granted. BeginDrop does not
	// wait long for a slow reader, since others queue behind it: days can be dropped a minute
	// later.
	BeginView: "LOCK TABLE kept IN ACCESS SHARE MODE",
	BeginDrop: "SET LOCAL lock_timeout = '300ms'; LOCK TABLE kept IN ACCESS EXCLUSIVE MODE",
	SizeQuery: `SELECT CAST(coalesce(sum(pg_total_relation_size(c.oid)), 0) AS bigint) FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = current_schema() AND c.relkind = 'r'`,
}

// hashed returns SQL for one hash of several text columns: index entries are limited in size.
func hashSQL(columns []string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = "length(" + c + ")::text || ':' || " + c
	}
	return "md5(" + strings.Join(parts, " || ") + ")"
}
