package client

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/prom/result"
	"mete.dev/mete/internal/x/httpx"
)

// Query evaluates a PromQL query at an instant. An error of the query itself wraps
// fault.ErrInvalid and names the place in it as the server does.
func (c *Client) Query(ctx context.Context, promql string, at time.Time) (*result.Answer, error) {
	return get(ctx, c, "/api/v1/query", url.Values{"query": {promql}, "time": {formatInstant(at)}}, result.Parse)
}

// QueryRange evaluates a PromQL query at each step from one instant to another; see
// [Client.Query].
func (c *Client) QueryRange(ctx context.Context, promql string, from, to time.Time, step time.Duration) (*result.Answer, error) {
	return get(ctx, c, "/api/v1/query_range", url.Values{"query": {promql}, "start": {formatInstant(from)}, "end": {formatInstant(to)},
		"step": {strconv.FormatFloat(step.Seconds(), 'f', -1, 64)}}, result.Parse)
}

// formatInstant writes a time for Prometheus: in seconds since 1970, to the millisecond.
func formatInstant(t time.Time) string {
	return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64)
}

// prometheusError converts an error answer of Prometheus's API; it returns nil for any other answer.
func prometheusError(a *httpx.Answer) error {
	var p struct {
		Status string `json:"status"`
		Type   string `json:"errorType"`
		Error  string `json:"error"`
	}
	if httpx.MediaType(a.Header) != "application/json" || json.Unmarshal(a.Body, &p) != nil || p.Status != "error" || p.Error == "" {
		return nil
	}
	text, _, _ := strings.Cut(p.Error, "\n") // the first of several errors, which are on lines of their own
	err := fault.Problem{Status: a.StatusCode, Detail: clean(text)}.Err()
	switch {
	case p.Type == "execution" || p.Type == "bad_data":
		err = &invalidQuery{clean(text)}
	case p.Type == "timeout":
		err = fault.WithHint(fault.Problem{Status: 503, Detail: clean(text)}.Err(), "query a shorter range or fewer series")
	}
	return &serverError{err}
}

// An invalidQuery is the error of a query that is wrong or asks for too much, in the server's words.
type invalidQuery struct{ text string }

func (q *invalidQuery) Error() string      { return q.text }
func (*invalidQuery) Is(target error) bool { return target == fault.ErrInvalid }
