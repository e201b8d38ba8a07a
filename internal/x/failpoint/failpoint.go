// Package failpoint marks the places at which the death of a program does the most harm, so
// that tests can kill it there.
//
// In release builds [At] does nothing. The tests of internal/testkit/torture build programs
// with their own package in its place, by go build -overlay.
package failpoint

// At marks a point. The name says what has just been done and what has not.
func At(point string) {}
