//go:build !torture

package sender

// tune changes nothing in programs as they are shipped.
func (c Config) tune() Config { return c }
