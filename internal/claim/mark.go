package claim

import (
	"os"
	"path/filepath"
)

// Mark notes in a directory, which is that of an agent's socket, that an agent
// measures this machine for a ledger. The note stays when the agent ends, as it
// books what was used meanwhile when it is back; a reboot takes it away with
// /run.
func Mark(dir, ledger string) error { return os.WriteFile(mark(dir, ledger), nil, 0o644) }

// Marked returns the note in a directory that an agent has measured this machine
// for a ledger, since it was started.
func Marked(dir, ledger string) (file string, ok bool) {
	file = mark(dir, ledger)
	_, err := os.Lstat(file)
	return file, err == nil
}

func mark(dir, ledger string) string { return filepath.Join(dir, "ledger-"+ledger) }
