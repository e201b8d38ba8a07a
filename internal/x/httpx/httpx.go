// Package httpx is what mete's HTTP servers and clients for machines have in common. Servers
// turn an error into an answer in one place, [Fail]. Clients send a request with [Do], which
// gives the error of a connection its kind.
package httpx

import (
	"encoding/json"
	"net/http"

	"mete.dev/mete/internal/model/fault"
)

// WriteJSON answers with a status code and v as JSON. It panics if v cannot be encoded. An
// error of the connection is ignored: a client that has gone away sends its request again.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	Write(w, status, "application/json", marshal(v))
}

// WriteProblem answers with a problem, under its status code.
func WriteProblem(w http.ResponseWriter, p fault.Problem) {
	Write(w, p.Status, fault.ProblemType, marshal(p))
}

// Write answers with a status code and a body of a media type, which no cache keeps. An error
// of the connection is ignored, as by [WriteJSON].
func Write(w http.ResponseWriter, status int, mediaType string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", mediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// WithHeader adds a header to each answer of h.
func WithHeader(name, value string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(name, value)
		h.ServeHTTP(w, r)
	})
}

// marshal returns v as a line of JSON.
func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("httpx: " + err.Error())
	}
	return append(b, '\n')
}
