package db

import "fmt"

// Wrap adds the ledger prefix and the thing that err is about.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("ledger: %s: %w", fmt.Sprintf(format, args...), err)
}
