package server

import (
	"context"
	"time"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/registry"
)

// silencer makes and ends silences, and writes both to the audit log.
type silencer struct{ *Server }

// Silence implements api.Silences.
func (s silencer) Silence(ctx context.Context, want query.Silence) (query.Silence, error) {
	made, err := s.alerts.Silence(want, time.Now())
	if err != nil {
		return made, err
	}
	return made, s.audit(ctx, "silence.create", made.ID, made.Matchers.String()+"; until "+made.Ends.UTC().Format(time.RFC3339)+", by "+made.By)
}

// EndSilence implements api.Silences.
func (s silencer) EndSilence(ctx context.Context, id string) (query.Silence, error) {
	ended, err := s.alerts.EndSilence(id, time.Now())
	if err != nil {
		return ended, err
	}
	return ended, s.audit(ctx, "silence.end", ended.ID, ended.Matchers.String())
}

// AllSilences implements api.Silences.
func (s silencer) AllSilences() []query.Silence { return s.alerts.Silences() }

func (s silencer) audit(ctx context.Context, action, object, detail string) error {
	return s.Ledger.Audit(ctx, registry.Audit{At: time.Now().UTC(), Actor: "local", Action: action, Object: object, Detail: detail})
}
