package schema

import "embed"

// A Migration is the text of a file of statements.
type Migration struct{ Name, Text string }

// Migrations are the schema migrations in the order of their names. A released migration never
// changes; new ones are added. The tables of usage are not in them: their columns follow from the
// list of resources in model/usage and are added when it grows.
var Migrations = readMigrations()

//go:embed *.sql
var files embed.FS

func readMigrations() (all []Migration) {
	entries, _ := files.ReadDir(".") // they are in memory
	for _, e := range entries {
		text, _ := files.ReadFile(e.Name())
		all = append(all, Migration{e.Name(), string(text)})
	}
	return all
}
