package v1

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
)

// A Silence suppresses the notifications of alerts for a time.
type Silence struct {
	ID       string     `json:"id"`
	State    string     `json:"state" doc:"active, pending or expired" enum:"active,pending,expired"`
	Matchers string     `json:"matchers" doc:"the alerts that it silences: those whose labels all matchers match, as alertname=\"MeteNodeSilent\", node=~\"rack1-.*\""`
	Starts   *time.Time `json:"starts_at"`
	Ends     *time.Time `json:"ends_at"`
	By       string     `json:"created_by" doc:"who made it, as they said"`
	Comment  string     `json:"comment" doc:"why, as they said"`
}

// ListKey implements [Element].
func (Silence) ListKey() string { return "silences" }

// WriteJSON implements [Document].
func (s Silence) WriteJSON(w io.Writer) error { return writeLine(w, s) }

// SilenceOf makes a Silence as it is at a time.
func SilenceOf(s *query.Silence, now time.Time) Silence {
	return Silence{ID: s.ID, State: s.State(now), Matchers: s.Matchers.String(), Starts: timeOrNil(s.Starts), Ends: timeOrNil(s.Ends), By: s.By, Comment: s.Comment}
}

// A SilenceRequest is the order to silence alerts.
type SilenceRequest struct {
	Matchers string     `json:"matchers"`
	Starts   *time.Time `json:"starts_at,omitempty"` // nil is now
	Ends     *time.Time `json:"ends_at"`
	By       string     `json:"created_by"`
	Comment  string     `json:"comment"`
}

// maxSilence is the longest time that a silence may last: a longer one is forgotten.
const maxSilence = 366 * 24 * time.Hour

// Silence is the silence that is ordered at a time. The error wraps fault.ErrInvalid.
func (r *SilenceRequest) Silence(now time.Time) (s query.Silence, err error) {
	if s.Matchers, err = query.ParseMatchers(r.Matchers); err != nil {
		return s, err
	}
	s.Starts, s.By, s.Comment = now.UTC(), r.By, r.Comment
	if r.Starts != nil {
		s.Starts = r.Starts.UTC()
	}
	if r.Ends != nil {
		s.Ends = r.Ends.UTC()
	}
	switch {
	case r.Ends == nil:
		return s, invalid("a silence ends by itself: give the time", "ends_at is missing")
	case !s.Ends.After(now) || !s.Ends.After(s.Starts):
		return s, invalid("choose a time to come, after starts_at", "ends_at %s", formatTime(s.Ends))
	case s.Ends.Sub(now) > maxSilence:
		return s, invalid("at most a year from now; make another one then", "ends_at %s", formatTime(s.Ends))
	case strings.TrimSpace(r.By) == "" || len(r.By) > query.MaxSilenceComment:
		return s, invalid(fmt.Sprintf("a name of at most %d bytes, which others can ask", query.MaxSilenceComment), "created_by of %d bytes", len(r.By))
	case len(r.Comment) > query.MaxSilenceComment:
		return s, invalid(fmt.Sprintf("at most %d", query.MaxSilenceComment), "a comment of %d bytes", len(r.Comment))
	}
	return s, nil
}

// ParseSilenceRequest reads an order strictly. The error wraps fault.ErrInvalid.
func ParseSilenceRequest(body []byte) (r SilenceRequest, err error) {
	more, err := decodeOne(body, &r)
	switch {
	case err != nil:
		return r, fmt.Errorf("%w silence: %w", fault.ErrInvalid, err)
	case more:
		return r, invalid("send one object", "silence: more than one")
	}
	return r, nil
}

// SilenceStates returns the states of silences.
func SilenceStates() []string { return []string{"active", "pending", "expired"} }

// SortSilences sorts silences by state, and those of one state by their end.
func SortSilences(list []query.Silence, now time.Time) {
	slices.SortStableFunc(list, func(a, b query.Silence) int {
		return slices.Index(SilenceStates(), a.State(now)) - slices.Index(SilenceStates(), b.State(now))
	})
}
