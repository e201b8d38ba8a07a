//go:build race

package ledger_test

// rounds are few here, as SQLite is slow under the race detector.
const rounds = 12
