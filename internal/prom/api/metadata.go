package api

import (
	"encoding/json"
	"net/http"
	"strconv"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/metric"
	"mete.dev/mete/internal/x/httpx"
)

// metadata answers with type and help of each metric. Prometheus's own handler knows these from
// scrapes only.
func metadata(w http.ResponseWriter, r *http.Request) {
	type entry struct {
		Type string `json:"type"`
		Help string `json:"help"`
		Unit string `json:"unit"`
	}
	if httpx.CheckMethod(w, r, http.MethodGet, http.MethodHead) != nil {
		reject(w, http.StatusMethodNotAllowed, "bad_data", "metadata is available with GET only")
		return
	}
	asked, limit := r.URL.Query(), -1
	if text := asked.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			reject(w, http.StatusBadRequest, "bad_data", "limit must be a number")
			return
		}
		limit = n
	}
	found := map[string][]entry{}
	for _, m := range metric.Metrics() {
		if one := asked.Get("metric"); one != "" && one != m.Name || limit == 0 || limit > 0 && len(found) >= limit {
			continue
		}
		found[m.Name] = []entry{{m.Type, m.Help, m.Unit}}
	}
	write(w, http.StatusOK, map[string]any{"status": "success", "data": found})
}

// refuse answers an error in the form of Prometheus's API.
func refuse(w http.ResponseWriter, err error) {
	p := fault.ProblemOf(err)
	kind := "unavailable"
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		kind = "unauthorized"
	case http.StatusBadRequest:
		kind = "bad_data"
	}
	text := err.Error()
	if hint := fault.Hint(err); hint != "" {
		text += ": " + hint
	}
	reject(w, p.Status, kind, text)
}

// reject answers with an error of Prometheus's API.
func reject(w http.ResponseWriter, status int, kind, text string) {
	write(w, status, map[string]string{"status": "error", "errorType": kind, "error": text})
}

func write(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic("prom/api: " + err.Error()) // it is text and numbers
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has gone away needs no answer
}
