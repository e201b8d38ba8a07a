package schema

import "embed"

// Migrations are the schema migrations in the order of their names. A released migration never
// changes; new ones are added. The tables of usage are not in them: their columns follow from the
// list of resources in model/usage and are added when it grows.
//
//go:embed *.sql
var Migrations embed.FS
