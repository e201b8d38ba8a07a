package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/batch"
	"mete.dev/mete/internal/ship"
)

// A drain is what the backlogs of machines cost that a server did not hear of for
// a day, while they go on measuring.
type drain struct {
	load
	BacklogRows int64 `json:"backlog_rows"`
	Retries     int64 `json:"retries"`
}

// backlog encodes a day of windows as an agent keeps them: of 10 s for the last
// two hours, of 5 minutes before. They are in a stream of their own.
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

// drain measures how backlogs are taken in.
func (c *serverFlags) drain(ctx context.Context, dir string) (d *drain, err error) {
	if dir, err = sub(dir, "drain"); err != nil {
		return nil, err
	}
	t, err := openTarget(ctx, c.bin, dir, c.database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	fmt.Fprintf(os.Stderr, "enrolling %d machines, and writing the backlog of each\n", c.backlog)
	f, err := openFleet(ctx, t, dir, c.backlog, c.workloads)
	if err != nil {
		return nil, err
	}
	d = &drain{}
	sent := make([][][]byte, c.backlog)
	now := time.Now()
	for i := range sent {
		var rows int
		if sent[i], rows, err = f.backlog(f.origins[i], now); err != nil {
			return nil, err
		}
		d.BacklogRows += int64(rows)
	}
	fmt.Fprintf(os.Stderr, "%d rows to drain\n", d.BacklogRows)
	var answers, visible stopwatch
	var lives atomic.Int64
	own := cpuOf(os.Getpid())
	server, database := t.cpu()
	start := time.Now()
	live, drained := context.WithCancel(ctx)
	defer drained()
	g, ctx := errgroup.WithContext(ctx)
	for i, o := range f.origins[:c.backlog] {
		g.Go(func() error {
			for k := 0; ; k++ {
				at := start.Add(window*time.Duration(k) + window*time.Duration(i)/time.Duration(c.backlog))
				if sleepUntil(live, at); live.Err() != nil {
					return nil
				}
				b, err := o.live.encode(&batch.Batch{Windows: []batch.Window{f.window(i+k, o, at.Add(-window), window)}})
				if err != nil {
					return err
				}
				closed := time.Now()
				if err := o.send(ctx, b); err != nil {
					return err
				}
				answers.add(time.Since(closed))
				lives.Add(1)
			}
		})
	}
	g.Go(func() error { return t.watch(live, f, start.Add(time.Hour), &visible) })
	g.Go(func() error {
		defer drained()
		old, ctx := errgroup.WithContext(ctx)
		pause := time.Duration(float64(time.Second) / ship.Default().Drain)
		for i, o := range f.origins[:c.backlog] {
			old.Go(func() error {
				for k, b := range sent[i] {
					from := time.Now()
					if err := o.send(ctx, b); err != nil {
						return fmt.Errorf("backlog %d: %w", k, err)
					}
					sleepUntil(ctx, from.Add(pause))
				}
				return nil
			})
		}
		return old.Wait()
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	l, err := t.load(c.backlog, lives.Load()*int64(len(f.names))+d.BacklogRows, start, own, server, database, &answers, &visible)
	if err != nil {
		return nil, err
	}
	d.load, d.Retries = *l, f.retries.Load()
	return d, nil
}
