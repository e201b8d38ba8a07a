package v1

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
)

// A Backup is a copy of what a server keeps.
type Backup struct {
	Dir            string
	Ledger         int64 // bytes
	Metrics        int64 // bytes; blocks may share their room with the server's own
	ExternalLedger bool  // the ledger is in PostgreSQL, and no part of it
	Took           time.Duration
}

type backupJSON struct {
	Dir     string  `json:"directory"`
	Ledger  *int64  `json:"ledger_bytes"` // null where it is in PostgreSQL
	Metrics int64   `json:"metrics_bytes"`
	Seconds float64 `json:"seconds"`
}

// BackupJSON writes what was copied.
func BackupJSON(b Backup) []byte {
	f := backupJSON{Dir: b.Dir, Metrics: b.Metrics, Seconds: b.Took.Seconds()}
	if !b.ExternalLedger {
		f.Ledger = &b.Ledger
	}
	return append(marshal(f), '\n')
}

// ParseBackup reads what BackupJSON wrote.
func ParseBackup(body []byte) (b Backup, err error) {
	var f backupJSON
	if err := json.Unmarshal(body, &f); err != nil {
		return b, fmt.Errorf("%w backup: %w", fault.ErrInvalid, err)
	}
	b = Backup{Dir: f.Dir, Metrics: f.Metrics, ExternalLedger: f.Ledger == nil, Took: time.Duration(f.Seconds * float64(time.Second))}
	if f.Ledger != nil {
		b.Ledger = *f.Ledger
	}
	return b, nil
}

type backupRequestJSON struct {
	Dir string `json:"directory"`
}

// BackupRequestJSON writes the order to make a backup in a directory.
func BackupRequestJSON(dir string) []byte { return append(marshal(backupRequestJSON{dir}), '\n') }

// ParseBackupRequest reads what BackupRequestJSON wrote, strictly. The error wraps fault.ErrInvalid.
func ParseBackupRequest(body []byte) (dir string, err error) {
	var f backupRequestJSON
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return "", fmt.Errorf("%w order of a backup: %w", fault.ErrInvalid, err)
	}
	if d.More() || f.Dir == "" {
		return "", invalid(`send one object: {"directory": "/path"}`, "order of a backup")
	}
	return f.Dir, nil
}
