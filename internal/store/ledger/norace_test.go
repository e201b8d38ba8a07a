//go:build !race

package ledger_test

// rounds are how many questions TestShelf asks.
const rounds = 50
