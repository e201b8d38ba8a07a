//go:build !race

package read_test

// rounds are how many questions TestShelf asks.
const rounds = 50
