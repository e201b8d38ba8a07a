package archive_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mete.dev/mete/internal/job/archive"
	"mete.dev/mete/internal/job/report"
	"mete.dev/mete/internal/model/fault"
)

func job(ms int64) *report.Report {
	return &report.Report{ID: report.NewID(ms, [10]byte{9: byte(ms)}), Name: "job", Command: []string{"true"}, Labels: map[string]string{}}
}

func TestKeep(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "state")
	s := archive.New(dir)
	if _, err := s.Last(); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Last of nothing = %v, want not found", err)
	}
	early, late := job(1_000_000), job(1_000_100)
	for _, r := range []*report.Report{late, early} {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	last, err := s.Last()
	if err != nil || last.ID != late.ID {
		t.Errorf("Last = %v, %v, want %s", last, err, late.ID)
	}
	for _, id := range []string{early.ID, early.ID[20:], "0000" + early.ID[4:9]} {
		if r, err := s.Get(id); err != nil || r.ID != early.ID {
			t.Errorf("Get(%q) = %v, %v, want %s", id, r, err, early.ID)
		}
	}
	for id, want := range map[string]error{
		"0000":           fault.ErrNotFound, // too short
		"zzzzzz":         fault.ErrNotFound,
		"000000":         fault.ErrConflict,
		"../../x":        fault.ErrNotFound,
		job(3).ID:        fault.ErrNotFound,
		"":               fault.ErrNotFound,
		early.ID + "xxx": fault.ErrNotFound,
	} {
		if r, err := s.Get(id); !errors.Is(err, want) {
			t.Errorf("Get(%q) = %v, %v, want %v", id, r, err, want)
		}
	}
	ids, err := s.IDs()
	if d := cmp.Diff([]string{early.ID, late.ID}, ids); d != "" || err != nil {
		t.Errorf("IDs: %v\n%s", err, d)
	}
	// Only the owner may read commands and arguments.
	for p, want := range map[string]os.FileMode{"jobs": 0o700, "jobs/" + late.ID + ".json": 0o600} {
		if st, err := os.Stat(filepath.Join(dir, p)); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", p, st.Mode().Perm(), err, want)
		}
	}
}

func TestDamaged(t *testing.T) {
	dir := t.TempDir()
	s, a, b := archive.New(dir), job(1), job(2)
	if err := s.Put(a); err != nil {
		t.Fatal(err)
	}
	file := func(r *report.Report) string { return filepath.Join(dir, "jobs", r.ID+".json") }
	if err := os.WriteFile(file(b), a.JSON(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(b.ID); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("another job's report: %v, want invalid", err)
	}
	if err := os.WriteFile(file(a), a.JSON()[:40], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(a.ID); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("truncated report: %v, want invalid", err)
	}
}

// TestUnwritable checks that an impossible directory is an error and leaves nothing.
func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := archive.New(file).Put(job(1)); err == nil {
		t.Error("Put below a file worked")
	}
}

func TestTogether(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			if err := archive.New(dir).Put(job(int64(n))); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	es, err := os.ReadDir(filepath.Join(dir, "jobs"))
	if err != nil || len(es) != 20 {
		t.Errorf("%d files, %v, want 20", len(es), err)
	}
}
