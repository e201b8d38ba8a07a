// Package archive stores the reports of jobs: one file each in the directory jobs of mete's state
// directory.
//
// Files are replaced atomically and readable by their owner only. They are not synced: waiting for
// the disk would cost a short job more than measuring it.
package archive

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
)

// A Store is a state directory. Several processes may use it concurrently.
type Store struct{ dir string }

// New returns the store in a state directory, which need not exist.
func New(dir string) *Store { return &Store{filepath.Join(dir, "jobs")} }

func (s *Store) file(id string) string { return filepath.Join(s.dir, id+".json") }

// Put stores a report, replacing one with the same ID.
func (s *Store) Put(r *report.Report) (err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(r.JSON())
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), s.file(r.ID))
}

// minID is the shortest part of an ID that stands for it.
const minID = 6

// Get returns the report that word names: the one with this ID; or the only one whose ID begins or
// ends with it, if it has at least six characters; or the latest one of the job with this name; or
// that of the only job whose name begins with it. The error is fault.ErrNotFound if there is none,
// fault.ErrConflict if there are several.
func (s *Store) Get(word string) (*report.Report, error) {
	id := strings.ToLower(word)
	if report.ValidID(id) {
		return s.read(id)
	}
	all, err := s.IDs()
	if err != nil {
		return nil, err
	}
	ids := slices.DeleteFunc(slices.Clone(all), func(have string) bool {
		return len(id) < minID || !strings.HasPrefix(have, id) && !strings.HasSuffix(have, id)
	})
	switch len(ids) {
	case 0:
		return s.latest(word, all)
	case 1:
		return s.read(ids[0])
	}
	return nil, ambiguous(word, ids)
}

// latest returns the latest report of the job whose name is word or, of only one job, begins with it.
// ids are all jobs in order of their starts. Reports that cannot be read have no name.
func (s *Store) latest(word string, ids []string) (*report.Report, error) {
	begin := map[string]*report.Report{} // the latest of each name that begins with word
	for _, id := range slices.Backward(ids) {
		r, err := s.read(id)
		switch {
		case err != nil || word == "" || !strings.HasPrefix(r.Name, word):
		case r.Name == word:
			return r, nil
		case begin[r.Name] == nil:
			begin[r.Name] = r
		}
	}
	switch names := slices.Sorted(maps.Keys(begin)); len(names) {
	case 0:
		return nil, fmt.Errorf("job %q: %w", word, fault.ErrNotFound)
	case 1:
		return begin[names[0]], nil
	default:
		return nil, ambiguous(word, names)
	}
}

// ambiguous is the error of a word that stands for several jobs.
func ambiguous(word string, matches []string) error {
	const shown = 5
	list := strings.Join(matches[:min(shown, len(matches))], ", ")
	if len(matches) > shown {
		list += ", ..."
	}
	return fmt.Errorf("job %q: %d match (%s): %w", word, len(matches), list, fault.ErrConflict)
}

func (s *Store) read(id string) (*report.Report, error) {
	b, err := os.ReadFile(s.file(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("job %q: %w", id, fault.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	r, err := report.Parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.file(id), err)
	}
	if r.ID != id {
		return nil, fmt.Errorf("%s: %w report: belongs to job %s", s.file(id), fault.ErrInvalid, r.ID)
	}
	return r, nil
}

// Last returns the report of the job that started last.
func (s *Store) Last() (*report.Report, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("job in %s: %w", s.dir, fault.ErrNotFound)
	}
	return s.read(ids[len(ids)-1])
}

// IDs lists the jobs in order of their starts.
func (s *Store) IDs() ([]string, error) {
	es, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range es {
		if id, ok := strings.CutSuffix(e.Name(), ".json"); ok && report.ValidID(id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, cmp.Compare)
	return ids, nil
}
