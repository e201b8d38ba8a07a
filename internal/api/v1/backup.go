package v1

import (
	"fmt"
	"io"

	"mete.dev/mete/internal/model/fault"
)

// A Backup is a copy of what a server keeps.
type Backup struct {
	Dir     string  `json:"directory"`
	Ledger  *int64  `json:"ledger_bytes"`  // nil where the ledger is in PostgreSQL and not part of the copy
	Metrics int64   `json:"metrics_bytes"` // blocks may share their disk space with the server's own
	Seconds float64 `json:"seconds"`       // that it took
}

// WriteJSON implements [Document].
func (b Backup) WriteJSON(w io.Writer) error { return writeLine(w, b) }

// A BackupRequest is the order to make a backup in a directory.
type BackupRequest struct {
	Dir string `json:"directory"`
}

// ParseBackupRequest reads an order strictly. The error wraps fault.ErrInvalid.
func ParseBackupRequest(body []byte) (r BackupRequest, err error) {
	more, err := decodeOne(body, &r)
	switch {
	case err != nil:
		return r, fmt.Errorf("%w order of a backup: %w", fault.ErrInvalid, err)
	case more || r.Dir == "":
		return r, invalid(`send one object: {"directory": "/path"}`, "order of a backup")
	}
	return r, nil
}
