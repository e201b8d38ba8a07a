// Package ask sends the questions of a server's API. Its code is made of the
// description that the server's handlers give of themselves; the answers are for
// who asks to read.
package ask

//go:generate go tool oapi-codegen -config generate.yaml questions.json
