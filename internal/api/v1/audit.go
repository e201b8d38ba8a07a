package v1

import (
	"io"
	"time"

	"mete.dev/mete/internal/model/registry"
)

// An AuditEntry is an entry of the audit log.
type AuditEntry struct {
	At     *time.Time `json:"at"`
	Actor  string     `json:"actor"`  // "local", or the id of a node or token
	Action string     `json:"action"` // "token.create", "node.revoke", "batch.conflict"
	Object string     `json:"object"` // of the action: a name or id
	Detail string     `json:"detail"`
}

// ListKey implements [Element].
func (AuditEntry) ListKey() string { return "audit" }

// WriteJSON implements [Document].
func (a AuditEntry) WriteJSON(w io.Writer) error { return writeLine(w, a) }

// AuditEntryOf makes an AuditEntry.
func AuditEntryOf(a *registry.Audit) AuditEntry {
	return AuditEntry{timeOrNil(a.At), a.Actor, a.Action, a.Object, a.Detail}
}

// Parameters of the audit log, beside ParamFrom, ParamTo and ParamLimit.
const (
	ParamAction = "action"
	ParamAbout  = "about"
)

// Limits of the entries of an answer; the first one where a query has none, or 0.
const (
	DefaultAuditLimit = 100
	MaxAuditLimit     = 10_000
)

// ParseAuditQuery reads a query of the audit log from URL parameters. The error wraps fault.ErrInvalid.
func ParseAuditQuery(given map[string][]string, now time.Time) (q registry.AuditQuery, err error) {
	if err := CheckParameters(given, ParamFrom, ParamTo, ParamAction, ParamAbout, ParamLimit); err != nil {
		return q, err
	}
	for name, at := range map[string]*time.Time{ParamFrom: &q.From, ParamTo: &q.To} {
		text, err := singleValue(given, name, "")
		if err == nil && text != "" {
			*at, err = ParseTime(text, now)
		}
		if err != nil {
			return q, err
		}
	}
	if !q.From.IsZero() && !q.To.IsZero() && !q.From.Before(q.To) {
		return q, invalid("from has to be before to", "range from %s to %s", formatTime(q.From), formatTime(q.To))
	}
	if q.Action, err = singleValue(given, ParamAction, ""); err != nil {
		return q, err
	}
	if q.About, err = singleValue(given, ParamAbout, ""); err != nil {
		return q, err
	}
	if q.Limit, err = ParseNumber(given, ParamLimit, MaxAuditLimit); q.Limit == 0 {
		q.Limit = DefaultAuditLimit
	}
	return q, err
}
