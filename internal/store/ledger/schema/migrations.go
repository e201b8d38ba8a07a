package schema

import "embed"

// Migrations are the steps of the schema, in the order of their names. A step
// is never changed once it has been released; one more is added. The tables of
// usage are not in them: their columns follow from meter's list of resources,
// and are added when it grows.
//
//go:embed *.sql
var Migrations embed.FS
