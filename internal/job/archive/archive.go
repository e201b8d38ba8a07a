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

// Get returns the report with this ID, or the only one whose ID begins or ends with it, if it has
// at least six characters. The error is fault.ErrNotFound if there is none, fault.ErrConflict if
// there are several.
func (s *Store) Get(id string) (*report.Report, error) {
	id = strings.ToLower(id)
	if report.ValidID(id) {
		return s.read(id)
	}
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	ids = slices.DeleteFunc(ids, func(have string) bool {
		return len(id) < 6 || !strings.HasPrefix(have, id) && !strings.HasSuffix(have, id)
	})
	switch len(ids) {
	case 0:
		return nil, fmt.Errorf("job %q: %w", id, fault.ErrNotFound)
	case 1:
		return s.read(ids[0])
	}
	return nil, fmt.Errorf("job %q: %d jobs match: %w", id, len(ids), fault.ErrConflict)
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
