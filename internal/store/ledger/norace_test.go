//go:build !race

package ledger_test

const rounds = 120
