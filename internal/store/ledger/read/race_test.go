//go:build race

package read_test

// rounds is small: SQLite is slow under the race detector.
const rounds = 12
