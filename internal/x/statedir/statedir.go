// Package statedir finds the directory in which mete keeps its state.
package statedir

import (
	"fmt"
	"path/filepath"

	"mete.dev/mete/internal/model/fault"
)

// Default returns the state directory of the user uid: $METE_STATE, else /var/lib/mete for
// root, else $XDG_STATE_HOME/mete or ~/.local/state/mete (XDG base directory specification
// 0.8).
func Default(getenv func(string) string, uid int) (string, error) {
	if dir := getenv("METE_STATE"); dir != "" {
		return dir, nil
	}
	if uid == 0 {
		return "/var/lib/mete", nil
	}
	// The specification requires relative paths to be ignored.
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "mete"), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, ".local", "state", "mete"), nil
	}
	return "", fault.WithHint(fmt.Errorf("state directory: %w", fault.ErrNotFound), "set METE_STATE to a directory for mete's state")
}
