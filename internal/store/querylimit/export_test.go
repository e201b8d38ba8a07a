package querylimit

// Running returns the number of calls in running queries.
func Running() (n int) {
	running.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}
