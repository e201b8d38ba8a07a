package tsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Config)
		valid  bool
	}{
		"default":                {func(*Config) {}, true},
		"least":                  {func(c *Config) { *c = Config{Retention: 2 * time.Hour, Workloads: 1} }, true},
		"short retention":        {func(c *Config) { c.Retention = 2*time.Hour - 1 }, false},
		"no workloads":           {func(c *Config) { c.Workloads = 0 }, false},
		"negative size":          {func(c *Config) { c.MaxBytes = -1 }, false},
		"negative window":        {func(c *Config) { c.OutOfOrderWindow = -1 }, false},
		"negative backfill wait": {func(c *Config) { c.BackfillDelay = -1 }, false},
	} {
		cfg := Default()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != c.valid || err != nil && !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(Config{Dir: t.TempDir()}, nil, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Open of an invalid configuration: %v", err)
	}
	want := Config{Retention: 360 * time.Hour, OutOfOrderWindow: 26 * time.Hour, BackfillDelay: 6 * time.Minute, Reserve: 32 << 20, Workloads: 20_000}
	if got := Default(); got != want {
		t.Errorf("default %+v, want %+v", got, want)
	}
}

// Open registers the database's own metrics, once.
func TestRegister(t *testing.T) {
	t.Parallel()
	cfg, reg := Default(), prometheus.NewRegistry()
	cfg.Dir = t.TempDir()
	cfg.MaxBytes, cfg.Retention = 1<<30, 40*time.Hour
	s, err := Open(cfg, &memoryLedger{}, reg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	found, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range found {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if got["prometheus_tsdb_retention_limit_bytes"] != 1<<30 || got["prometheus_tsdb_retention_limit_seconds"] != 40*3600 {
		t.Errorf("limits %v bytes, %v s", got["prometheus_tsdb_retention_limit_bytes"], got["prometheus_tsdb_retention_limit_seconds"])
	}
	if s.Retention() != cfg.Retention {
		t.Errorf("retention %v", s.Retention())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Open(cfg, &memoryLedger{}, reg, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("registered twice")
	}
	for _, method := range []string{"Unsampled"} {
		if _, err := Open(cfg, &memoryLedger{failing: method}, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, errInjected) {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// Warnings about overlapping blocks and errors of canceled work are not logged.
func TestQuietHandler(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	log := slog.New(quietHandler{slog.NewTextHandler(&b, nil)})
	log.Warn("Overlapping blocks found during reloadBlocks")
	log.Warn("shown 1", "err", errors.New("disk is full"))
	log.With("part", "x").WithGroup("g").Warn("Overlapping blocks found")
	log.With("part", "x").Error("compaction failed", "block", 1, "err", fmt.Errorf("write: %w", context.Canceled), "took", 2)
	log.With("part", "y").WithGroup("g").Warn("shown 2", "a", 1)
	if got := b.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "shown 1") || !strings.Contains(got, `msg="shown 2" part=y g.a=1`) {
		t.Errorf("logged %s", got)
	}
}

// moveEntries replaces existing entries, and leaves out missing ones.
func TestMoveEntries(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	for path, text := range map[string]string{"from/a/x": "new", "from/b": "b", "from/stays": "s", "to/a/old": "old"} {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := moveEntries([]string{"missing", "a", "b"}, from, to); err != nil {
		t.Fatal(err)
	}
	var got []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if !d.IsDir() {
			got = append(got, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if text := strings.Join(got, " "); text != "from/stays to/a/x to/b" {
		t.Errorf("files %s", text)
	}
	if err := moveEntries([]string{"stays"}, from, filepath.Join(to, "b")); err == nil {
		t.Error("moved into a file")
	}
}

// Files in the database's directory that state missing samples reach the ledger, and are then removed.
func TestLoadUnsampled(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]struct {
		missing, holes string // files
		marked         map[string]batch.Span
		through        float64
		failing        string
		from, to       float64 // expected span of n1; to 0 is now, from < 0 none
		err            error
		remain         bool // the files
	}{
		"nothing":                   {from: -1},
		"in the ledger":             {marked: map[string]batch.Span{"n1": {}}, from: 0, to: -1},
		"backup":                    {missing: `{"since":"1999-12-31T20:00:10Z"}`, from: 10},
		"interrupted write":         {missing: `{"si`, holes: `{"n1"`, from: -1},
		"hole":                      {holes: `{"n1":{"From":%d,"Back":%d}}`, from: 10, to: 20},
		"hole to the last window":   {holes: `{"n1":{"From":%d,"Back":0}}`, through: 50, from: 10, to: 50},
		"hole of an unbooked node":  {holes: `{"n1":{"From":%d,"Back":0}}`, from: -1},
		"hole of an unknown node":   {holes: `{"who":{"From":%d,"Back":0}}`, from: -1},
		"ledger fails, backup":      {missing: `{"since":"1999-12-31T20:00:10Z"}`, failing: "MarkAllUnsampled", err: errInjected, remain: true},
		"ledger fails, hole":        {holes: `{"n1":{"From":%d,"Back":%d}}`, failing: "MarkUnsampled", err: errInjected, remain: true},
		"ledger fails, last window": {holes: `{"n1":{"From":%d,"Back":0}}`, failing: "Through", err: errInjected, remain: true},
		"ledger fails":              {failing: "Unsampled", err: errInjected},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				if v.through > 0 {
					c.l.through = c.at(v.through)
				}
				if v.marked != nil {
					c.l.unsampled["n1"] = batch.Span{From: c.at(0), To: c.at(1)}
				}
				if strings.Contains(v.holes, "%d") {
					v.holes = strings.Replace(strings.Replace(v.holes, "%d", fmt.Sprint(c.at(10).UnixMilli()), 1), "%d", fmt.Sprint(c.at(20).UnixMilli()), 1)
				}
				for file, text := range map[string]string{missingFile: v.missing, holesFile: v.holes} {
					if text != "" {
						if err := os.WriteFile(filepath.Join(c.cfg.Dir, file), []byte(text), 0o600); err != nil {
							c.Fatal(err)
						}
					}
				}
				c.l.failing = v.failing
				if err := c.s.loadUnsampled(c.Context()); !errors.Is(err, v.err) {
					c.Errorf("%v, want %v", err, v.err)
				}
				c.l.failing = ""
				left, _ := filepath.Glob(filepath.Join(c.cfg.Dir, "*.json"))
				if (len(left) > 0) != v.remain {
					c.Errorf("files remain: %v", left)
				}
				if v.err != nil {
					return
				}
				want := batch.Span{From: c.at(v.from), To: c.at(v.to)}
				switch {
				case v.marked != nil:
					want.To = c.at(1)
				case v.to == 0:
					want.To = time.Now()
				}
				got, ok := c.s.unsampled["n1"]
				if ok != (v.from >= 0) || ok && (!got.From.Equal(want.From) || !got.To.Equal(want.To) || got.resumed != 0) {
					c.Errorf("%v %v, want %v", ok, got, want)
				}
				if len(c.l.unsampled) > 1 {
					c.Errorf("marked %v", c.l.unsampled)
				}
			})
		})
	}
}

// A directory that cannot be read is an error.
func TestReadJSON(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var v map[string]int
	if ok, err := readJSON(dir, &v); ok || err == nil {
		t.Errorf("a directory: %v, %v", ok, err)
	}
	if ok, err := readJSON(filepath.Join(dir, "none"), &v); ok || err != nil {
		t.Errorf("no file: %v, %v", ok, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte(`{"a":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if ok, err := readJSON(filepath.Join(dir, "one"), &v); !ok || err != nil || v["a"] != 1 {
		t.Errorf("%v, %v, %v", ok, err, v)
	}
}

// A node that is booked after its newest sample lacks samples; a second is the reach of a crash
// between the two stores.
func TestDetectUnsampled(t *testing.T) {
	play(t, func(c *scene) {
		n := &node{id: "n1"}
		for _, v := range []struct {
			newest, through float64
			want            bool
		}{{100, 101, false}, {100, 101.001, true}, {100, 99, false}, {0, 50, true}} {
			clear(c.s.unsampled)
			clear(c.l.unsampled)
			c.l.through = c.at(v.through)
			if err := c.s.detectUnsampled(c.Context(), n, c.at(v.newest).UnixMilli()); err != nil {
				c.Error(err)
			}
			span := batch.Span{From: time.UnixMilli(c.at(v.newest).UnixMilli()), To: c.l.through}
			if got, ok := c.s.unsampled["n1"]; ok != v.want || ok && (got.Span != span || c.l.unsampled["n1"] != span) {
				c.Errorf("newest sample at %v, booked through %v: %v, %v", v.newest, v.through, ok, got)
			}
		}
		clear(c.s.unsampled)
		for _, method := range []string{"Through", "MarkUnsampled"} {
			c.l.failing = method
			if err := c.s.detectUnsampled(c.Context(), n, 0); !errors.Is(err, errInjected) || len(c.s.unsampled) > 0 {
				c.Errorf("%s: %v", method, err)
			}
		}
		c.l.failing, c.l.through = "", time.Time{}
		if err := c.s.detectUnsampled(c.Context(), n, 0); err != nil || len(c.s.unsampled) > 0 {
			c.Errorf("nothing booked: %v, %v", err, c.s.unsampled)
		}
		c.s.history = nil
		if err := c.s.detectUnsampled(c.Context(), n, 0); err != nil || len(c.s.unsampled) > 0 {
			c.Errorf("without a ledger: %v, %v", err, c.s.unsampled)
		}
	})
}

// newestSample finds the newest sample of the idle row or of the gauges, however old it is.
func TestNewestSample(t *testing.T) {
	play(t, func(c *scene) {
		n := &node{id: "n1", cluster: "c", name: "box"}
		check := func(want float64) {
			c.Helper()
			got, err := c.s.newestSample(c.Context(), n)
			if err != nil || want < 0 && got != 0 || want >= 0 && got != c.at(want).UnixMilli() {
				c.Errorf("newest sample at %s s, %v, want %v", c.seconds(got), err, want)
			}
		}
		check(-1)
		c.put(c.window(0, 10)) // only gauges
		check(10)
		c.name("idle", nil)
		c.put(c.window(10, 20, use{key: "idle", res: usage.CPU, amount: 1, total: 1}))
		check(20)
		c.put(c.window(20, 80, use{key: "idle", res: usage.CPU, amount: 1, total: 2, ended: true})) // its stale marker does not count
		check(80)
		time.Sleep(20 * time.Hour)
		check(80)
		time.Sleep(10 * 24 * time.Hour)
		check(80)
		time.Sleep(5 * 24 * time.Hour)
		check(-1)
	})
}

// State writes samples, and ends the series that are not repeated.
func TestState(t *testing.T) {
	play(t, func(c *scene) {
		state := c.s.State()
		put := func(at float64, samples ...Sample) {
			c.Helper()
			if err := state.Put(c.Context(), c.at(at), samples); err != nil {
				c.Fatal(err)
			}
		}
		put(0, Sample{"up", []string{"node", "a"}, 1}, Sample{"up", []string{"node", "b"}, 2}, Sample{"up", []string{"node", "a"}, 9}, Sample{"rows", nil, 3})
		put(10, Sample{"up", []string{"node", "a"}, 4}, Sample{"rows", nil, 3})
		put(20, Sample{"up", []string{"node", "b"}, 5})
		put(20, Sample{"up", []string{"node", "b"}, 6}) // the same time
		want := "rows: 0=3 10=3 20|\nup node=a: 0=1 10=4 20|\nup node=b: 0=2 10| 20=5\n"
		if got := c.samples(); got != want {
			c.Errorf("samples\n%swant\n%s", got, want)
		}
		if n := c.s.Stats().Samples; n != 9 {
			c.Errorf("%d samples, want 9", n)
		}
	})
}

// A block has each sample once; a block without samples is not kept.
func TestBlockWriter(t *testing.T) {
	play(t, func(c *scene) {
		write := func(finish bool, at ...float64) {
			c.Helper()
			w, err := newBlockWriter(c.Context(), c.cfg.Dir)
			if err != nil {
				c.Fatal(err)
			}
			var ref storage.SeriesRef
			for i, v := range at {
				if err := w.add(&ref, c.at(v).UnixMilli(), float64(i), func() labels.Labels { return labels.FromStrings("__name__", "x") }); err != nil {
					c.Fatal(err)
				}
			}
			if (ref != 0) != (len(at) > 0) {
				c.Errorf("reference %d", ref)
			}
			if finish {
				err = w.finish(c.s.log)
			} else {
				err = w.discard()
			}
			if err != nil {
				c.Error(err)
			}
		}
		blocks := func() int {
			all, _ := filepath.Glob(filepath.Join(c.cfg.Dir, "0*"))
			return len(all)
		}
		// The same time with another value, an earlier one, and one that is too far from the first.
		if write(true, 0, 60, 60, 30, -20000, 120); blocks() != 1 {
			c.Errorf("%d blocks, want 1", blocks())
		}
		write(true)
		write(false, 0, 60)
		if n := blocks(); n != 1 {
			c.Errorf("%d blocks, want 1", n)
		}
		c.close()
		c.open()
		if got, want := c.samples(), "x: 0=0 60=1 120=5\n"; got != want {
			c.Errorf("samples %s, want %s", got, want)
		}
		m := c.s.db.Blocks()[0].Meta()
		if !m.Compaction.FromOutOfOrder() || m.Stats.NumSamples != 3 {
			c.Errorf("metadata %+v", m)
		}
		if _, err := os.Stat(backfillDir(c.cfg.Dir)); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("the directory of unfinished blocks remains: %v", err)
		}
		if err := os.WriteFile(backfillDir(c.cfg.Dir), nil, 0o600); err != nil {
			c.Fatal(err)
		}
		if _, err := newBlockWriter(c.Context(), c.cfg.Dir); err == nil {
			c.Error("wrote into a file")
		}
		if err := markOutOfOrder(c.cfg.Dir); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("a directory without metadata: %v", err)
		}
		if err := os.WriteFile(filepath.Join(c.cfg.Dir, "meta.json"), []byte("{"), 0o600); err != nil {
			c.Fatal(err)
		}
		if err := markOutOfOrder(c.cfg.Dir); err == nil {
			c.Error("took invalid metadata")
		}
	})
}

// checkBlock returns since when samples are missing.
func TestCheckBlock(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(0, 10))
		aside := filepath.Join(c.TempDir(), "copy")
		if err := c.s.Backup(c.Context(), aside); err != nil {
			c.Fatal(err)
		}
		all, _ := filepath.Glob(filepath.Join(aside, "0*"))
		if len(all) != 1 {
			c.Fatal(all)
		}
		check := func(want int64, valid bool) {
			c.Helper()
			if from, err := checkBlock(all[0]); from != want || (err == nil) != valid {
				c.Errorf("%d, %v, want %d", from, err, want)
			}
		}
		begin := c.at(10).UnixMilli()
		check(begin, true)
		if lost, err := setAsideUnreadable(aside, c.s.log); lost != never || err != nil {
			c.Errorf("%d, %v", lost, err)
		}
		if err := os.Truncate(filepath.Join(all[0], "index"), 5); err != nil {
			c.Fatal(err)
		}
		check(begin, false)
		if err := errors.Join(os.Mkdir(filepath.Join(aside, "other"), 0o700), os.WriteFile(filepath.Join(aside, "01ARZ3NDEKTSV4RRFFQ69G5FAV"), nil, 0o600), os.Mkdir(backfillDir(aside), 0o700), os.Mkdir(copyDir(aside), 0o700)); err != nil {
			c.Fatal(err)
		}
		if lost, err := setAsideUnreadable(aside, c.s.log); lost != begin || err != nil {
			c.Errorf("lost since %d, %v, want %d", lost, err, begin)
		}
		entries, err := os.ReadDir(aside)
		if err != nil {
			c.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() == filepath.Base(all[0]) || e.Name() == "filling" || e.Name() == "copying" {
				c.Errorf("%s remains", e.Name())
			}
		}
		all[0] = aside + ".broken-" + filepath.Base(all[0])
		if err := os.Remove(filepath.Join(all[0], "meta.json")); err != nil {
			c.Fatal(err)
		}
		check(0, false)
		if _, err := setAsideUnreadable(filepath.Join(aside, "none"), c.s.log); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("no directory: %v", err)
		}
	})
}

// A backup has all samples, in blocks of two hours, and states since when samples may be missing.
func TestBackup(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"same file system": "", "another file system": "/dev/shm"} {
		t.Run(name, func(t *testing.T) {
			play(t, func(c *scene) {
				to := c.TempDir()
				if dir != "" {
					var a, b syscall.Stat_t
					if syscall.Stat(dir, &a) != nil || syscall.Stat(to, &b) != nil || a.Dev == b.Dev {
						c.Skip(dir, " is the same file system")
					}
					var err error
					if to, err = os.MkdirTemp(dir, "mete-backup"); err != nil {
						c.Skip(err)
					}
					made := to
					c.Cleanup(func() { _ = os.RemoveAll(made) })
				}
				to = filepath.Join(to, "copy")
				for at := 0.0; at <= 2*3600; at += 3600 {
					c.put(c.window(at, at+10))
				}
				c.s.noteUnsampled("n1", batch.Span{From: c.at(-40 * 3600), To: c.at(5)})
				c.s.noteUnsampled("n2", batch.Span{From: c.at(0), To: c.at(5)})
				if err := c.s.Backup(c.Context(), to); err != nil {
					c.Fatal(err)
				}
				ctx, stop := context.WithCancel(c.Context())
				stop()
				if err := c.s.Backup(ctx, to+"2"); !errors.Is(err, context.Canceled) {
					c.Errorf("canceled: %v", err)
				}
				if err := c.s.Backup(c.Context(), to); !errors.Is(err, fs.ErrExist) {
					c.Errorf("into an existing directory: %v", err)
				}
				if _, err := os.Stat(copyDir(c.cfg.Dir)); !errors.Is(err, fs.ErrNotExist) {
					c.Errorf("the temporary copy remains: %v", err)
				}
				if left, _ := filepath.Glob(filepath.Join(c.cfg.Dir, ".new-*")); len(left) > 0 {
					c.Errorf("files remain: %v", left)
				}
				want := c.samples()
				var m missing
				if ok, err := readJSON(filepath.Join(to, missingFile), &m); !ok || err != nil || !m.Since.Equal(c.at(-40*3600)) {
					c.Errorf("missing since %v, %v, %v", m.Since, ok, err)
				}
				blocks, _ := filepath.Glob(filepath.Join(to, "0*"))
				if len(blocks) != 2 {
					c.Errorf("%d blocks, want one for each two hours", len(blocks))
				}
				c.close()
				c.cfg.Dir = to
				c.open()
				if got := c.samples(); got != want {
					c.Errorf("samples\n%swant\n%s", got, want)
				}
				for _, b := range c.s.db.Blocks() {
					if m := b.Meta(); !m.Compaction.FromOutOfOrder() {
						c.Errorf("block %v is not marked as one of late samples", m.ULID)
					}
				}
			})
		})
	}
}

// An empty database has a backup too; the doubt is then as old as late samples may be.
func TestBackupEmpty(t *testing.T) {
	play(t, func(c *scene) {
		c.s.noteUnsampled("n1", batch.Span{From: time.Now().Add(-25 * time.Hour), To: time.Now()})
		if got, want := c.s.oldestDoubt(), time.Now().Add(-26*time.Hour); !got.Equal(want) {
			c.Errorf("since %v, want %v", got, want)
		}
		to := filepath.Join(c.TempDir(), "copy")
		if err := c.s.Backup(c.Context(), to); err != nil {
			c.Fatal(err)
		}
		ctx, stop := context.WithCancel(c.Context())
		stop()
		c.put(c.window(0, 10))
		if err := c.s.Backup(ctx, to+"2"); !errors.Is(err, context.Canceled) {
			c.Errorf("canceled: %v", err)
		}
	})
}

// Only the server's user may read the directories of the database.
func TestDirectoryModes(t *testing.T) {
	play(t, func(c *scene) {
		w, err := newBlockWriter(c.Context(), c.cfg.Dir)
		if err != nil {
			c.Fatal(err)
		}
		if err := w.discard(); err != nil {
			c.Error(err)
		}
		parent := c.TempDir()
		aside, backup := filepath.Join(parent, "aside"), filepath.Join(parent, "backup")
		if err := errors.Join(moveEntries(nil, c.cfg.Dir, aside), c.s.Backup(c.Context(), backup)); err != nil {
			c.Fatal(err)
		}
		for _, dir := range []string{c.cfg.Dir, backfillDir(c.cfg.Dir), aside, backup} {
			if i, err := os.Stat(dir); err != nil || i.Mode().Perm() != 0o700 {
				c.Errorf("%s: %v, %v, want 0700", dir, i.Mode(), err)
			}
		}
	})
}

// Each step of a backup that fails is an error.
func TestBackupFails(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(3600, 3610))
		c.put(c.window(0, 10)) // late
		parent := c.TempDir()
		next := func() string { return filepath.Join(parent, fmt.Sprint("copy", time.Now().UnixNano())) }
		// The database's directory is gone, then a file.
		dir, moved := c.cfg.Dir, filepath.Join(parent, "moved")
		if err := os.Rename(dir, moved); err != nil {
			c.Fatal(err)
		}
		to := next()
		if err := c.s.Backup(c.Context(), to); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("without the database: %v", err)
		}
		if made, _ := os.ReadDir(to); len(made) > 0 {
			c.Errorf("copied %v", made)
		}
		if err := errors.Join(os.WriteFile(dir, nil, 0o600), os.Mkdir(next()+"2", 0o700)); err != nil {
			c.Fatal(err)
		}
		if err := c.s.backup(c.Context(), next()+"2"); !errors.Is(err, syscall.ENOTDIR) { // late samples become a block there
			c.Errorf("the database is a file: %v", err)
		}
		if err := errors.Join(os.Remove(dir), os.Rename(moved, dir)); err != nil {
			c.Fatal(err)
		}
		// There is no directory to link into.
		if err := c.s.checkLink(filepath.Join(parent, "none")); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("no directory: %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) > 0 {
			c.Errorf("files remain: %v", left)
		}
		// The database cannot be copied into itself.
		if err := c.s.backup(c.Context(), dir); err == nil {
			c.Error("copied into itself")
		}
		if _, err := os.Stat(filepath.Join(dir, missingFile)); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("a backup that failed states what is missing: %v", err)
		}
		// No JSON has such a time.
		if err := writeMissing(parent, time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
			c.Error("wrote the year 10000")
		}
		if _, err := os.Stat(filepath.Join(parent, missingFile)); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("a file without content: %v", err)
		}
	})
}

// A block that cannot be written is an error.
func TestBlockWriterFails(t *testing.T) {
	play(t, func(c *scene) {
		open := func(ctx context.Context) *blockWriter {
			c.Helper()
			w, err := newBlockWriter(ctx, c.cfg.Dir)
			if err != nil {
				c.Fatal(err)
			}
			return w
		}
		var ref storage.SeriesRef
		add := func(w *blockWriter, ms int64) error {
			return w.add(&ref, c.at(0).UnixMilli()+ms, 1, func() labels.Labels { return labels.FromStrings("__name__", "x") })
		}
		empty := func(what string) {
			c.Helper()
			if all, _ := filepath.Glob(filepath.Join(c.cfg.Dir, "0*")); len(all) > 0 {
				c.Fatalf("%s: blocks %v", what, all)
			}
		}

		// The commit after many samples. The next ones have another transaction.
		w := open(c.Context())
		w.app = &failingAppender{left: 1e9}
		var err error
		for ms := int64(0); ms < 100_000 && err == nil; ms++ {
			err = add(w, ms)
		}
		if !errors.Is(err, errInjected) || w.pending != 0 {
			c.Errorf("%v, %d samples pending", err, w.pending)
		}
		ref = 0
		if err := errors.Join(add(w, 1), w.discard()); err != nil {
			c.Error(err)
		}
		empty("discarded")

		w = open(c.Context())
		w.app = &failingAppender{left: 1e9}
		ref = 0
		if err := errors.Join(add(w, 1), w.finish(c.s.log)); !errors.Is(err, errInjected) {
			c.Errorf("the last commit failed: %v", err)
		}
		empty("the last commit failed")

		ctx, stop := context.WithCancel(c.Context())
		w = open(ctx)
		ref = 0
		if err := add(w, 1); err != nil {
			c.Error(err)
		}
		stop()
		if err := w.finish(c.s.log); !errors.Is(err, context.Canceled) {
			c.Errorf("canceled: %v", err)
		}
		empty("canceled")

		// Before the block is marked, its description vanishes, or before it is moved, something is in its place.
		for what, do := range map[string]func(block string) error{
			"no description": func(block string) error { return os.Remove(filepath.Join(block, "meta.json")) },
			"a file in its place": func(block string) error {
				return os.WriteFile(filepath.Join(c.cfg.Dir, filepath.Base(block)), nil, 0o600)
			},
		} {
			w = open(c.Context())
			ref = 0
			if err := add(w, 1); err != nil {
				c.Error(err)
			}
			hook := hookHandler{slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug}), func() {
				made, err := filepath.Glob(filepath.Join(backfillDir(c.cfg.Dir), "0*"))
				if err != nil || len(made) != 1 {
					c.Errorf("%s: blocks %v, %v", what, made, err)
					return
				}
				if err := do(made[0]); err != nil {
					c.Error(err)
				}
			}}
			if err := w.finish(slog.New(hook)); err == nil {
				c.Errorf("%s: no error", what)
			}
			if err := os.RemoveAll(backfillDir(c.cfg.Dir)); err != nil {
				c.Error(err)
			}
		}
	})
}

// A hookHandler calls a function before each record.
type hookHandler struct {
	slog.Handler
	do func()
}

func (h hookHandler) Handle(ctx context.Context, r slog.Record) error {
	h.do()
	return h.Handler.Handle(ctx, r)
}

// Many samples take several transactions, and all are in the block.
func TestLargeBlock(t *testing.T) {
	play(t, func(c *scene) {
		const many = 110_000
		w, err := newBlockWriter(c.Context(), c.cfg.Dir)
		if err != nil {
			c.Fatal(err)
		}
		var ref storage.SeriesRef
		most := 0
		for ms := range int64(many) {
			if err := w.add(&ref, c.at(0).UnixMilli()+ms, 1, func() labels.Labels { return labels.FromStrings("__name__", "x") }); err != nil {
				c.Fatal(err)
			}
			most = max(most, w.pending)
		}
		if most >= many/2 {
			c.Errorf("%d samples in a transaction", most)
		}
		if err := w.finish(c.s.log); err != nil || w.written != many {
			c.Fatal(w.written, err)
		}
		c.close()
		c.open()
		if got := c.s.db.Blocks()[0].Meta().Stats.NumSamples; got != many {
			c.Errorf("%d samples in the block, want %d", got, many)
		}
	})
}

// A block that cannot be set aside is an error.
func TestSetAsideFails(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "metrics")
	const name = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o700), os.MkdirAll(filepath.Join(dir+".broken-"+name, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if lost, err := setAsideUnreadable(dir, slog.New(slog.DiscardHandler)); err == nil || lost != 0 {
		t.Errorf("lost since %d, %v", lost, err)
	}
	cfg := Default()
	cfg.Dir = dir
	if _, err := Open(cfg, &memoryLedger{}, nil, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrExist) {
		t.Errorf("opened: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, name, "meta.json"), []byte(`{"version":1,"minTime":-5}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if from, err := checkBlock(filepath.Join(dir, name)); from != 0 || err == nil {
		t.Errorf("a block from before 1970: %d, %v", from, err)
	}
}

// An error of Open is returned, and the log does not say then that parts were set aside.
func TestOpenFails(t *testing.T) {
	play(t, func(c *scene) {
		c.put(c.window(0, 10))
		c.close()
		defer c.open()
		var log bytes.Buffer
		open := func(cfg Config) error {
			_, err := Open(cfg, c.l, nil, slog.New(slog.NewTextHandler(&log, nil)))
			return err
		}
		cfg := c.cfg
		cfg.Dir = filepath.Join(c.TempDir(), "file", "metrics")
		if err := os.WriteFile(filepath.Dir(cfg.Dir), nil, 0o600); err != nil {
			c.Fatal(err)
		}
		if err := open(cfg); !errors.Is(err, syscall.ENOTDIR) {
			c.Errorf("in a file: %v", err)
		}
		// The log is a file, and what is in the place of the copy is none that takes it.
		wal, aside := filepath.Join(c.cfg.Dir, "wal"), c.cfg.Dir+".broken-"+time.Now().UTC().Format("20060102T150405.000")
		if err := errors.Join(os.RemoveAll(wal), os.WriteFile(wal, nil, 0o600), os.WriteFile(aside, nil, 0o600)); err != nil {
			c.Fatal(err)
		}
		if err := open(c.cfg); !errors.Is(err, syscall.ENOTDIR) || log.Len() > 0 {
			c.Errorf("cannot set aside: %v, logged %s", err, log.String())
		}
		if err := errors.Join(os.Remove(aside), os.Remove(wal)); err != nil {
			c.Fatal(err)
		}
		// The last segment of the log cannot be opened.
		segment := filepath.Join(wal, "00000000")
		if err := errors.Join(os.Mkdir(wal, 0o700), os.Symlink(segment, segment)); err != nil {
			c.Fatal(err)
		}
		if err := open(c.cfg); !errors.Is(err, syscall.ELOOP) {
			c.Errorf("a segment that is a link to itself: %v", err)
		}
		// It is a directory, which cannot be truncated.
		if err := errors.Join(os.Remove(segment), os.Mkdir(segment, 0o700)); err != nil {
			c.Fatal(err)
		}
		if err := truncateTornRecords(c.cfg.Dir, slog.New(slog.DiscardHandler)); !errors.Is(err, syscall.EISDIR) && !errors.Is(err, syscall.EINVAL) {
			c.Errorf("a segment that is a directory: %v", err)
		}
		if err := os.RemoveAll(wal); err != nil {
			c.Fatal(err)
		}
	})
}

// The database has no lock of its own, and compacts blocks up to a tenth of the retention.
func TestDatabaseOptions(t *testing.T) {
	play(t, func(c *scene) {
		if _, err := os.Stat(filepath.Join(c.cfg.Dir, "lock")); !errors.Is(err, fs.ErrNotExist) {
			c.Errorf("a lock: %v", err)
		}
		for retention, want := range map[time.Duration]time.Duration{2 * time.Hour: 2 * time.Hour, 20 * time.Hour: 2 * time.Hour, 360 * time.Hour: 36 * time.Hour, 1e5 * time.Hour: 31 * 24 * time.Hour} {
			if got := maxBlockSpan(retention); got != want {
				c.Errorf("with a retention of %v: %v, want %v", retention, got, want)
			}
		}
		own, corruptions := prometheus.NewRegistry(), prometheus.NewCounter(prometheus.CounterOpts{Name: "prometheus_tsdb_wal_corruptions_total"})
		other := prometheus.NewCounter(prometheus.CounterOpts{Name: "other"})
		other.Inc()
		own.MustRegister(corruptions, other)
		if err := checkCorruption(own); err != nil {
			c.Error(err)
		}
		corruptions.Inc()
		if err := checkCorruption(own); !errors.Is(err, errCorrupt) {
			c.Errorf("a corrupt record: %v", err)
		}
		own.MustRegister(brokenCollector{prometheus.NewDesc("broken", "", nil, nil)})
		if err := checkCorruption(own); err == nil || errors.Is(err, errCorrupt) {
			c.Errorf("metrics that cannot be read: %v", err)
		}
	})
}

// The database compacts blocks to longer ones.
func TestCompaction(t *testing.T) {
	play(t, func(c *scene) {
		for at := 0.0; at <= 30*3600; at += 1800 {
			c.put(c.window(at, at+10))
		}
		if err := c.s.db.Compact(c.Context()); err != nil {
			c.Fatal(err)
		}
		longest := time.Duration(0)
		for _, b := range c.s.db.Blocks() {
			longest = max(longest, time.Duration(b.MaxTime()-b.MinTime())*time.Millisecond)
		}
		if longest <= 2*blockSpan {
			c.Errorf("the longest block has %v", longest)
		}
	})
}

// A brokenCollector has a metric that cannot be read.
type brokenCollector struct{ desc *prometheus.Desc }

func (b brokenCollector) Describe(all chan<- *prometheus.Desc) { all <- b.desc }
func (b brokenCollector) Collect(all chan<- prometheus.Metric) {
	all <- prometheus.NewInvalidMetric(b.desc, errInjected)
}

// Series of ended workloads leave memory early.
func TestStaleSeriesLeaveMemory(t *testing.T) {
	play(t, func(c *scene) {
		var begin, end []use
		for i := range 20 {
			key := fmt.Sprint("w", i)
			c.name(key, nil)
			begin = append(begin, use{key: key, res: usage.CPU, amount: 1, total: 2})
			end = append(end, use{key: key, res: usage.CPU, amount: 1, total: 3, ended: true})
		}
		now := time.Since(c.begin).Seconds()
		c.put(c.window(now, now+10, begin...), c.window(now+10, now+20, end...))
		before := c.s.Stats().Series
		for at := now + 20; at < now+1200; at += 60 {
			time.Sleep(time.Minute)
			c.put(c.window(at, at+60))
		}
		if after := c.s.Stats().Series; after > before/2 {
			c.Errorf("%d series in memory, before their end %d", after, before)
		}
	})
}

// A block writer needs a directory for temporary files.
func TestBlockWriterWithoutTemporaryFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", filepath.Join(dir, "none"))
	if _, err := newBlockWriter(t.Context(), dir); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// unreadableBlock makes a block without an index.
func unreadableBlock(dir, name string) error {
	dir = filepath.Join(dir, name)
	return errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "meta.json"), []byte(`{"version":1,"ulid":"`+name+`","minTime":1,"maxTime":2}`), 0o600))
}

// If a block becomes unreadable after the check, the whole database is set aside, and each node is
// compared with the ledger.
func TestOpenSetsAllAside(t *testing.T) {
	t.Parallel()
	const first, second = "01ARZ3NDEKTSV4RRFFQ69G5FAV", "01BRZ3NDEKTSV4RRFFQ69G5FAV"
	t.Run("all", func(t *testing.T) {
		playNow(t, func(c *scene) {
			c.put(c.window(0, 10))
			c.l.through = c.at(10)
			c.close()
			if err := unreadableBlock(c.cfg.Dir, first); err != nil {
				c.Fatal(err)
			}
			once := sync.OnceFunc(func() {
				if err := unreadableBlock(c.cfg.Dir, second); err != nil {
					c.Error(err)
				}
			})
			var err error
			if c.s, err = Open(c.cfg, c.l, nil, slog.New(hookHandler{slog.NewTextHandler(io.Discard, nil), once})); err != nil {
				c.Fatal(err)
			}
			if len(c.l.unsampled) > 0 {
				c.Errorf("marked %v", c.l.unsampled)
			}
			if got := c.samples(); got != "\n" {
				c.Errorf("samples remain: %s", got)
			}
			if i, err := os.Stat(c.cfg.Dir); err != nil || i.Mode().Perm() != 0o700 {
				c.Errorf("mode %v, %v", i.Mode(), err)
			}
			if all, _ := filepath.Glob(c.cfg.Dir + ".broken-*/" + second); len(all) != 1 {
				c.Errorf("set aside %v", all)
			}
			c.put(c.window(10, 20))
			if got := c.l.unsampled["n1"]; !got.From.Equal(time.UnixMilli(0)) || !got.To.Equal(c.at(10)) {
				c.Errorf("the node lacks samples of %v", got)
			}
		})
	})
	t.Run("not moved back", func(t *testing.T) { // because something else is in the directory
		playNow(t, func(c *scene) {
			c.put(c.window(0, 10))
			c.close()
			defer c.open()
			if err := unreadableBlock(c.cfg.Dir, first); err != nil {
				c.Fatal(err)
			}
			hook := func() {
				errs := []error{unreadableBlock(c.cfg.Dir, second)}
				all, _ := filepath.Glob(c.cfg.Dir + ".broken-2*")
				for _, aside := range all {
					errs = append(errs, os.MkdirAll(filepath.Join(aside, "x"), 0o700))
				}
				if err := errors.Join(errs...); err != nil {
					c.Error(err)
				}
			}
			if _, err := Open(c.cfg, c.l, nil, slog.New(hookHandler{slog.NewTextHandler(io.Discard, nil), hook})); !errors.Is(err, fs.ErrExist) {
				c.Errorf("opened: %v", err)
			}
			if err := os.RemoveAll(filepath.Join(c.cfg.Dir, second)); err != nil {
				c.Error(err)
			}
		})
	})
}
