package api

import (
	"context"
	"log/slog"
	"net/http"

	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/x/fairqueue"
	"mete.dev/mete/internal/x/httpx"
)

// TextHandler returns the handler of an endpoint without parameters that answers with text of
// the given media type. For authorize see [New].
func TextHandler(mediaType string, ask func(context.Context, query.Scope) (string, error), authorize func(*http.Request) (query.Scope, error), log *slog.Logger) http.Handler {
	h := &handler{authorize: authorize, log: log, queue: fairqueue.New(1, maxQueue)}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowMethods(w, r, http.MethodGet, http.MethodHead) {
			return
		}
		c := h.readCall(w, r, nil, false)
		if c == nil {
			return // it is answered
		}
		ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
		defer cancel()
		var text string
		err := h.queued(ctx, &c.Caller, func() (err error) {
			text, err = ask(ctx, c.scope)
			return err
		})
		switch {
		case r.Context().Err() != nil: // the caller has gone
		case err != nil:
			h.failLogged(w, r, explainTimeout(err))
		default:
			httpx.Write(w, http.StatusOK, mediaType, []byte(text))
		}
	})
}
