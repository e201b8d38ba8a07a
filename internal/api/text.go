package api

import (
	"context"
	"log/slog"
	"net/http"

	"mete.dev/mete/internal/query"
	"mete.dev/mete/internal/tally"
)

// Text returns the handler of one question that takes no parameters and is
// answered with text of a media type. authorize is that of [New].
func Text(kind string, ask func(context.Context, query.Scope) (string, error), authorize func(*http.Request) (query.Scope, error), log *slog.Logger) http.Handler {
	h := &handler{authorize: authorize, log: log}
	return h.readAs(kind, func(ctx context.Context, given map[string][]string, s query.Scope) ([]byte, error) {
		if err := tally.Only(given); err != nil {
			return nil, err
		}
		text, err := ask(ctx, s)
		return []byte(text), err
	})
}
