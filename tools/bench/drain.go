package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/delivery/sender"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/usage"
)

// A drainCost is the cost of the backlogs of machines that were disconnected for a day and
// keep measuring.
type drainCost struct {
	load
	BacklogRows int64 `json:"backlog_rows"`
	Retries     int64 `json:"retries"`
}

// backlog encodes a day of windows as an agent keeps them: of 10 s for the last two hours,
// of 5 minutes before, in a stream of their own.
func (f *fleet) backlog(o *origin, now time.Time) (sent [][]byte, rows int, err error) {
	const day, fine, coarse = 24 * time.Hour, 2 * time.Hour, 5 * time.Minute
	most := min(360, 10_000/len(f.names))
	s := newStream()
	var b batch.Batch
	flush := func() error {
		if len(b.Windows) == 0 {
			return nil
		}
		bytes, err := s.encode(&b)
		sent, b.Windows = append(sent, bytes), b.Windows[:0]
		return err
	}
	length := coarse
	for at := now.Add(-day); at.Before(now); at = at.Add(length) {
		if now.Sub(at) <= fine {
			length = window
		}
		b.Windows = append(b.Windows, f.window(rows, o, at, length))
		rows++
		if len(b.Windows) == most {
			if err := flush(); err != nil {
				return nil, 0, err
			}
		}
	}
	return sent, rows * len(f.names), flush()
}

// A drainRun is a running measurement of a drain.
type drainRun struct {
	*serverFlags
	t        *target
	f        *fleet
	backlogs [][][]byte // batches of each machine
	rows     int64      // in them
	left     atomic.Int64
	lives    atomic.Int64 // windows
	// How long it took to book windows of the machines, and to see those of one machine in
	// answers.
	answers, visible stopwatch
}

// drain measures the draining of backlogs.
func (s *serverFlags) drain(ctx context.Context, dir string) (out *drainCost, err error) {
	if dir, err = sub(dir, "drain"); err != nil {
		return nil, err
	}
	db, err := openDatabase(dir, s.database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.close()) }()
	t, err := openTarget(ctx, s.bin, dir, db)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	s.logf("enrolling %d machines, and writing the backlog of each", s.backlog)
	f, err := openFleet(ctx, t, dir, s.backlog, s.workloads, time.Now())
	if err != nil {
		return nil, err
	}
	d := &drainRun{serverFlags: s, t: t, f: f, backlogs: make([][][]byte, s.backlog)}
	now := time.Now()
	for i := range d.backlogs {
		var rows int
		if d.backlogs[i], rows, err = f.backlog(f.origins[i], now); err != nil {
			return nil, err
		}
		d.rows += int64(rows)
		d.left.Add(int64(len(d.backlogs[i])))
	}
	s.logf("%d rows to drain, in %d batches", d.rows, d.left.Load())
	own := cpuOf(os.Getpid())
	server, database := t.cpu()
	start := time.Now()
	if err := d.run(ctx, start); err != nil {
		return nil, err
	}
	l, err := t.load(s.backlog, d.lives.Load()*int64(len(f.names))+d.rows, start, own, server, database, &d.answers, &d.visible)
	if err != nil {
		return nil, err
	}
	return &drainCost{*l, d.rows, f.retries.Load()}, nil
}

// run drains the backlogs, while all machines keep measuring.
func (d *drainRun) run(ctx context.Context, start time.Time) error {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	live, drained := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for i := range d.backlogs {
		g.Go(func() error { return d.measure(ctx, live, i, start) })
	}
	g.Go(func() error { return d.t.watch(live, d.f, start.Add(time.Hour), &d.visible) })
	g.Go(func() error { return d.logProgress(live) })
	g.Go(func() error {
		defer drained()
		old, ctx := errgroup.WithContext(ctx)
		for i := range d.backlogs {
			old.Go(func() error { return d.send(ctx, i) })
		}
		return old.Wait()
	})
	return g.Wait()
}

// send sends the backlog of the i-th machine.
func (d *drainRun) send(ctx context.Context, i int) error {
	pause := time.Duration(float64(time.Second) / sender.Default().DrainRate)
	for k, b := range d.backlogs[i] {
		from := time.Now()
		if err := d.f.origins[i].send(ctx, b); err != nil {
			return fmt.Errorf("backlog %d: %w", k, err)
		}
		d.left.Add(-1)
		sleepUntil(ctx, from.Add(pause))
	}
	return nil
}

// measure sends the windows of the i-th machine as they are due, until live ends.
func (d *drainRun) measure(ctx, live context.Context, i int, start time.Time) error {
	o := d.f.origins[i]
	for k := 0; ; k++ {
		closed := start.Add(window*time.Duration(k) + window*time.Duration(i)/time.Duration(len(d.backlogs)))
		if sleepUntil(live, closed); live.Err() != nil {
			return nil
		}
		b, err := o.live.encode(&batch.Batch{Windows: []usage.Window{d.f.window(i+k, o, closed.Add(-window), window)}})
		if err != nil {
			return err
		}
		if err := o.send(ctx, b); err != nil {
			return err
		}
		d.answers.add(time.Since(closed))
		d.lives.Add(1)
	}
}

// logProgress logs the progress at intervals.
func (d *drainRun) logProgress(ctx context.Context) error {
	for ctx.Err() == nil {
		sleepUntil(ctx, time.Now().Add(15*time.Second))
		rss, peak, err := memoryOf(d.t.cmd.Process.Pid)
		if err != nil {
			return err
		}
		d.logf("%d batches are left; RSS %d MiB, peak %d MiB; 99 of 100 live windows are booked within %.0f ms",
			d.left.Load(), rss>>20, peak>>20, d.answers.quantile(0.99))
	}
	return nil
}
