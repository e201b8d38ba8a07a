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
	Dir       string
	Ledger    int64 // bytes
	Metrics   int64 // bytes; blocks may share their room with the server's own
	Elsewhere bool  // the ledger is in PostgreSQL, and no part of it
	Took      time.Duration
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
	if !b.Elsewhere {
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
	b = Backup{Dir: f.Dir, Metrics: f.Metrics, Elsewhere: f.Ledger == nil, Took: time.Duration(f.Seconds * float64(time.Second))}
	if f.Ledger != nil {
		b.Ledger = *f.Ledger
	}
	return b, nil
}

type intoJSON struct {
	Dir string `json:"directory"`
}

// IntoJSON writes the order to make a backup in a directory.
func IntoJSON(dir string) []byte { return append(marshal(intoJSON{dir}), '\n') }

// ParseInto reads what IntoJSON wrote, strictly. The error wraps fault.ErrInvalid.
func ParseInto(body []byte) (dir string, err error) {
	var f intoJSON
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
