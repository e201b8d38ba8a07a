//go:build !torture

package spool

// native is the file system where a Config names none.
func native() FS { return disk{} }

// tune changes nothing in programs as they are shipped.
func (c Config) tune() Config { return c }
