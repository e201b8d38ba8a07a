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
	TablesQuery          string // returns the names of the tables
	ReferencesQuery      string // returns table, column, other table and other column of each foreign key
}

var SQLite = &Dialect{
	Name: "sqlite",
	Words: strings.NewReplacer("{int}", "INTEGER", "{blob}", "BLOB", "{id}", "INTEGER PRIMARY KEY",
		"{strict}", "STRICT", "{keyed}", "STRICT, WITHOUT ROWID",
		"{group}", "minute, "+strings.Join(GroupKeys, ", ")+", present, rough, rough_high"),
	Greatest:  "max",
	SizeQuery: "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",

	TablesQuery:     "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY name",
	ReferencesQuery: `SELECT m.name, f."from", f."table", f."to" FROM sqlite_schema m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table' ORDER BY 1, 2`,
}

var PostgreSQL = &Dialect{
	Name: "postgres",
	Words: strings.NewReplacer("{int}", "bigint", "{blob}", "bytea", "{id}", "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		"{strict}", "", "{keyed}", "",
		"{group}", "minute, "+hashSQL(GroupKeys)+", present, rough, rough_high"),
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

	TablesQuery: "SELECT CAST(tablename AS text) FROM pg_tables WHERE schemaname = current_schema() ORDER BY 1",
	ReferencesQuery: `SELECT CAST(t.relname AS text), CAST(a.attname AS text), CAST(o.relname AS text), CAST(b.attname AS text) FROM pg_constraint k
		JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace JOIN pg_class o ON o.oid = k.confrelid
		JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.conkey[1] JOIN pg_attribute b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[1]
		WHERE k.contype = 'f' AND n.nspname = current_schema() ORDER BY 1, 2`,
}

// hashed returns SQL for one hash of several text columns: index entries are limited in size.
func hashSQL(columns []string) string {
	parts := make([]string, len(columns))
	for i, c := range columns {
		parts[i] = "length(" + c + ")::text || ':' || " + c
	}
	return "md5(" + strings.Join(parts, " || ") + ")"
}
