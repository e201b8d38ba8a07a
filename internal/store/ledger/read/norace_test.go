//go:build !race

package read_test

// rounds are how many questions TestBlockCache asks.
const rounds = 50
