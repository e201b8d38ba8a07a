package alert

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/x/atomicfile"
)

const (
	// maxSilences limits the silences that have not ended.
	maxSilences = 500
	// keepSilences is how long an ended silence stays in the list.
	keepSilences = 30 * 24 * time.Hour
)

// silences keeps silences in a file. Its zero value keeps them in memory only.
type silences struct {
	path string

	mu   sync.Mutex
	list []query.Silence
}

// A storedSilence is the form of a silence in the file.
type storedSilence struct {
	ID       string    `json:"id"`
	Matchers string    `json:"matchers"`
	Starts   time.Time `json:"starts_at"`
	Ends     time.Time `json:"ends_at"`
	By       string    `json:"created_by"`
	Comment  string    `json:"comment"`
}

// openSilences reads the silences in a file. A silence that cannot be read has no effect.
func openSilences(path string, log *slog.Logger) (*silences, error) {
	s := &silences{path: path}
	if path == "" {
		return s, nil
	}
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s, nil
	case err != nil:
		return nil, err
	}
	var stored []storedSilence
	if err := json.Unmarshal(b, &stored); err != nil {
		log.Warn("the silences cannot be read; no alert is silenced", "path", path, "err", err)
		return s, nil
	}
	for _, one := range stored {
		ms, err := query.ParseMatchers(one.Matchers)
		if err != nil {
			log.Warn("a silence cannot be read; it silences no alert", "path", path, "silence", one.ID, "err", err)
			continue
		}
		s.list = append(s.list, query.Silence{ID: one.ID, Matchers: ms, Starts: one.Starts, Ends: one.Ends, By: one.By, Comment: one.Comment})
	}
	return s, nil
}

// update replaces the list by what change makes of it, and stores it without silences that ended
// long ago.
func (s *silences) update(now time.Time, change func([]query.Silence) ([]query.Silence, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := change(slices.Clone(s.list))
	if err != nil {
		return err
	}
	next = slices.DeleteFunc(next, func(o query.Silence) bool { return now.Sub(o.Ends) > keepSilences })
	if s.path != "" {
		stored := make([]storedSilence, len(next))
		for i, o := range next {
			stored[i] = storedSilence{o.ID, o.Matchers.String(), o.Starts, o.Ends, o.By, o.Comment}
		}
		b, err := json.MarshalIndent(stored, "", " ")
		if err != nil {
			return err
		}
		if err := atomicfile.Replace(s.path, append(b, '\n')); err != nil {
			return err
		}
	}
	s.list = next
	return nil
}

// ids returns the ids of the silences that apply to an alert with these labels.
func (s *silences) ids(labels map[string]string, now time.Time) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.list {
		if s.list[i].Suppresses(labels, now) {
			ids = append(ids, s.list[i].ID)
		}
	}
	return ids
}

// Silence stores a silence, and returns it with its new id.
func (a *Alerts) Silence(made query.Silence, now time.Time) (query.Silence, error) {
	made.ID = strings.ToLower(rand.Text()[:12])
	err := a.silences.update(now, func(list []query.Silence) ([]query.Silence, error) {
		lasting := 0
		for i := range list {
			if list[i].State(now) != "expired" {
				lasting++
			}
		}
		if lasting >= maxSilences {
			return nil, fault.WithHint(fmt.Errorf("%d silences: %w", lasting, fault.ErrConflict), "end some with mete silence end, or silence more alerts with each")
		}
		return append(list, made), nil
	})
	return made, err
}

// EndSilence ends a silence and returns it. One that has ended stays as it is. The error is
// fault.ErrNotFound if there is none with this id.
func (a *Alerts) EndSilence(id string, now time.Time) (ended query.Silence, err error) {
	return ended, a.silences.update(now, func(list []query.Silence) ([]query.Silence, error) {
		i := slices.IndexFunc(list, func(s query.Silence) bool { return s.ID == id })
		if i < 0 {
			return nil, fault.WithHint(fmt.Errorf("silence %q: %w", id, fault.ErrNotFound), "mete silence list shows them")
		}
		if list[i].Ends.After(now) {
			list[i].Ends = now
			if list[i].Starts.After(now) {
				list[i].Starts = now
			}
		}
		ended = list[i]
		return list, nil
	})
}

// Silences returns the silences, those that end last first.
func (a *Alerts) Silences() []query.Silence {
	a.silences.mu.Lock()
	defer a.silences.mu.Unlock()
	list := slices.Clone(a.silences.list)
	slices.SortFunc(list, func(x, y query.Silence) int { return cmp.Or(y.Ends.Compare(x.Ends), cmp.Compare(x.ID, y.ID)) })
	return list
}

// SilencedBy returns the ids of the silences that apply to an alert now.
func (a *Alerts) SilencedBy(ls labels.Labels, now time.Time) []string {
	return a.silences.ids(ls.Map(), now)
}
