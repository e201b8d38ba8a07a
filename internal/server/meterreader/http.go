package meterreader

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"mete.dev/mete/internal/attribute/external"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/x/httpx"
)

// An httpJSON is a meter that answers GET with JSON or a plain number.
type httpJSON struct {
	spec *external.Spec
	*access
}

// Read implements reader.
func (h *httpJSON) Read(ctx context.Context) (int64, error) {
	text, err := h.get(ctx, h.spec.URL)
	if err != nil {
		return 0, err
	}
	return valueIn(h.spec, text)
}

// A prometheus is a meter behind the HTTP API of Prometheus.
type prometheus struct {
	spec *external.Spec
	*access
}

// Read implements reader. The query must return one number: a scalar, or a vector of one
// series.
//
// Source of the format: https://prometheus.io/docs/prometheus/latest/querying/api/
func (p *prometheus) Read(ctx context.Context) (int64, error) {
	u, err := url.Parse(p.spec.URL)
	if err != nil {
		return 0, fmt.Errorf("url: %w: %w", httpx.WithoutURL(err), fault.ErrInvalid)
	}
	u = u.JoinPath("api/v1/query")
	u.RawQuery = url.Values{"query": {p.spec.Query}}.Encode()
	text, err := p.get(ctx, u.String())
	if err != nil {
		return 0, err
	}
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, fmt.Errorf("%s: not an answer of Prometheus: %w", u.Host, err)
	}
	if answer.Status != "success" {
		return 0, fmt.Errorf("query: %s", answer.Error)
	}
	var value []any // time and value, the latter as text
	switch answer.Data.ResultType {
	case "scalar":
		err = json.Unmarshal(answer.Data.Result, &value)
	case "vector":
		var series []struct{ Value []any }
		if err = json.Unmarshal(answer.Data.Result, &series); err == nil && len(series) != 1 {
			return 0, fmt.Errorf("query: %d series instead of one; aggregate them with sum()", len(series))
		}
		if err == nil {
			value = series[0].Value
		}
	default:
		return 0, fmt.Errorf("query: result is a %s, not one number", answer.Data.ResultType)
	}
	number, ok := "", false
	if len(value) == 2 {
		number, ok = value[1].(string)
	}
	if err != nil || !ok {
		return 0, fmt.Errorf("%s: not an answer of Prometheus: %w", u.Host, fault.ErrInvalid)
	}
	return p.spec.Unit.Value(number)
}

// A file is a meter whose value another program writes to a file.
type file struct{ spec *external.Spec }

// Read implements reader. It refuses a file older than the meter's stale time, except in
// /sys and /proc.
func (f *file) Read(context.Context) (int64, error) {
	info, err := os.Stat(f.spec.File)
	if err != nil {
		return 0, err
	}
	if age := time.Since(info.ModTime()); age > f.spec.Stale && !strings.HasPrefix(f.spec.File, "/sys/") && !strings.HasPrefix(f.spec.File, "/proc/") {
		return 0, fmt.Errorf("%s: last written %v ago: %w", f.spec.File, age.Round(time.Second), fault.ErrUnavailable)
	}
	if info.Size() > maxText {
		return 0, fmt.Errorf("%s has more than %d bytes: %w", f.spec.File, maxText, fault.ErrInvalid)
	}
	text, err := os.ReadFile(f.spec.File)
	if err != nil {
		return 0, err
	}
	v, err := valueIn(f.spec, text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", f.spec.File, err)
	}
	return v, nil
}
