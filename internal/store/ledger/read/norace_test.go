//go:build !race

package read_test

// rounds is the number of queries in TestBlockCache.
const rounds = 50
