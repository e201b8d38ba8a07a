// Package httpx writes what a server answers machines and other servers.
package httpx

import (
	"encoding/json"
	"net/http"

	"mete.dev/mete/internal/model/fault"
)

// WriteJSON answers with v, which can be written as WriteJSON. Who has gone away meanwhile
// asks again.
func WriteJSON(w http.ResponseWriter, status int, v any) { write(w, status, "application/json", v) }

// WriteProblem answers why not.
func WriteProblem(w http.ResponseWriter, p fault.Problem) { write(w, p.Status, fault.ProblemType, p) }

// WithHeader adds a header to each answer of h.
func WithHeader(name, value string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(name, value)
		h.ServeHTTP(w, r)
	})
}

func write(w http.ResponseWriter, status int, kind string, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("answer: " + err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // who went away asks again
}
