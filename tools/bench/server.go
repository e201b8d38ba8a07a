package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// The budgets of a server.
const (
	budgetRows    = 20_000 // window rows per second with SQLite, ...
	budgetCores   = 1      // ... on this number of cores
	budgetFlat    = 0.2    // relative increase of CPU per row, from 10 to 1000 origins
	budgetSample  = 5      // bytes
	budgetGroups  = 1.0    // s, a month by namespace
	budgetLabel   = 5.0    // s, a month by label
	budgetMemory  = 1 << 30
	budgetVisible = 15_000 // ms, of live windows while backlogs drain
)

// A load is the cost of booking over some time.
type load struct {
	Origins       int     `json:"origins"`
	Seconds       float64 `json:"seconds"`
	Rows          int64   `json:"rows"`
	RowsPerSecond float64 `json:"rows_per_second"`
	Cores         float64 `json:"server_cores"`
	CPU           float64 `json:"server_cpu_seconds_per_1000_rows"`
	DatabaseCPU   float64 `json:"database_cpu_seconds_per_1000_rows,omitempty"`
	OriginsCPU    float64 `json:"origins_cpu_seconds_per_1000_rows"`
	AnswerP50     float64 `json:"answer_p50_ms"`
	AnswerP99     float64 `json:"answer_p99_ms"`
	VisibleP50    float64 `json:"visible_p50_ms,omitempty"`
	VisibleP99    float64 `json:"visible_p99_ms,omitempty"`
	RSS           int64   `json:"server_rss_bytes"`
	PeakRSS       int64   `json:"server_peak_rss_bytes"`
}

// A report is the cost of a server with one database.
type report struct {
	Database  string      `json:"database"`
	Workloads int         `json:"workloads"`
	Sample    float64     `json:"wire_bytes_per_sample,omitempty"`
	Live      *load       `json:"live,omitempty"`
	Full      *load       `json:"full,omitempty"`
	Scale     []load      `json:"scale,omitempty"`
	Flat      float64     `json:"cpu_per_row_1000_to_10_origins,omitempty"`
	Queries   []queryCost `json:"queries,omitempty"`
	Drain     *drainCost  `json:"drain,omitempty"`

	Compared *comparison `json:"metrics,omitempty"`

	OverBudget []string `json:"over_budget"`
}

type serverFlags struct {
	origins, workloads int
	length             time.Duration
	database, bin      string
	parts              string
	history            history
	backlog            int
}

func serve(args []string) (over bool, err error) {
	fs := flag.NewFlagSet("server", flag.ExitOnError)
	var c serverFlags
	fs.IntVar(&c.origins, "origins", 1000, "machines to simulate")
	fs.IntVar(&c.workloads, "workloads", 20, "workloads of each")
	fs.DurationVar(&c.length, "for", 5*time.Minute, "how long to measure live and full")
	databases := fs.String("database", "sqlite,postgres", "ledgers, one after another: sqlite, postgres (starts one), or postgres://...")
	fs.StringVar(&c.bin, "bin", "", "measure this program instead of building ./cmd/mete-server")
	fs.StringVar(&c.parts, "part", "live,full,scale,query,drain,metrics", "what to measure; metrics is with a Prometheus (Debian's package) beside")
	fs.IntVar(&c.history.workloads, "history", 100_000, "workloads of the ledger for queries, each with a row a day for 30 days")
	fs.IntVar(&c.backlog, "backlog", 1000, "machines with a backlog of a day, for drain")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		return false, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var reports []*report
	for c.database = range strings.SplitSeq(*databases, ",") {
		r, err := c.run(ctx)
		if err != nil {
			return false, err
		}
		r.checkBudgets()
		over = over || len(r.OverBudget) > 0
		reports = append(reports, r)
	}
	if *output == "json" {
		return over, json.NewEncoder(os.Stdout).Encode(reports)
	}
	for _, r := range reports {
		if err := r.show(); err != nil {
			return over, err
		}
	}
	return over, nil
}

func (s *serverFlags) has(part string) bool {
	return slices.Contains(strings.Split(s.parts, ","), part)
}

// logf logs the progress.
func (s *serverFlags) logf(format string, args ...any) {
	name, _, _ := strings.Cut(s.database, ":")
	fmt.Fprintf(os.Stderr, "%s %s: %s\n", time.Now().Format(time.TimeOnly), name, fmt.Sprintf(format, args...))
}

func (s *serverFlags) run(ctx context.Context) (r *report, err error) {
	dir, err := os.MkdirTemp("", "mete-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.bin == "" {
		if s.bin, err = build(dir, "mete-server"); err != nil {
			return nil, err
		}
		defer func() { s.bin = "" }()
	}
	name, _, _ := strings.Cut(s.database, ":")
	r = &report{Database: name, Workloads: s.workloads, OverBudget: []string{}}
	// The comparison has a server of its own: its result depends on how much was booked
	// before.
	for _, part := range []struct {
		run  bool
		name string
		ago  time.Duration // how long ago its machines begin
		do   func(context.Context, *target, *fleet, *report) error
	}{{s.has("live") || s.has("full"), "book", 0, s.book}, {s.has("scale"), "scale", 0, s.scale}, {s.has("metrics"), "metrics", comparedWindows * window, s.compare}} {
		if !part.run {
			continue
		}
		if err := s.with(ctx, dir, part.name, part.ago, r, part.do); err != nil {
			return nil, err
		}
	}
	if s.has("query") {
		if r.Queries, err = s.measureQueries(ctx, dir); err != nil {
			return nil, err
		}
	}
	if s.has("drain") {
		if r.Drain, err = s.drain(ctx, dir); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// sub creates a directory for a part.
func sub(dir, part string) (string, error) {
	dir = filepath.Join(dir, part)
	return dir, os.Mkdir(dir, 0o755)
}

// with starts a server and its machines for a part.
func (s *serverFlags) with(ctx context.Context, dir, part string, ago time.Duration, r *report, do func(context.Context, *target, *fleet, *report) error) (err error) {
	if dir, err = sub(dir, part); err != nil {
		return err
	}
	d, err := openDatabase(dir, s.database)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	t, err := openTarget(ctx, s.bin, dir, d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	s.logf("enrolling %d machines", s.origins)
	f, err := openFleet(ctx, t, dir, s.origins, s.workloads, time.Now().Add(-ago))
	if err != nil {
		return err
	}
	if r.Sample, err = f.sample(); err != nil {
		return err
	}
	return do(ctx, t, f, r)
}

// book measures booking.
func (s *serverFlags) book(ctx context.Context, t *target, f *fleet, r *report) (err error) {
	if s.has("live") {
		s.logf("one window per machine every %v, for %v", window, s.length)
		if r.Live, err = t.sendPaced(ctx, f, pace{n: s.origins, rate: float64(s.origins) / window.Seconds(), length: s.length, probe: true}); err != nil {
			return err
		}
	}
	if s.has("full") {
		s.logf("full load, for %v", s.length)
		r.Full, err = t.sendPaced(ctx, f, pace{n: s.origins, length: s.length})
	}
	return err
}

// sample returns the bytes per sample in live batches. A sample is one amount of one row.
func (f *fleet) sample() (float64, error) {
	s, bytes := newStream(), 0
	for i := range f.windows[:50] {
		b, err := s.encode(&batch.Batch{Windows: []usage.Window{f.window(i, f.origins[0], time.Now().Add(-window), window)}})
		if err != nil {
			return 0, err
		}
		bytes += len(b)
	}
	return float64(bytes) / float64(f.samples*50), nil
}

// scale compares the CPU time per row as more and more machines send the same number of
// batches. All rows exist already, of the same four minutes, so that the written rows are
// equally old for each number of machines.
func (s *serverFlags) scale(ctx context.Context, t *target, f *fleet, r *report) error {
	// One batch each with the most machines, and within the server's rate limit per machine
	// with the fewest.
	const rounds, rate, length, minutes = 5, 250, 4 * time.Second, 4
	began := time.Now().Truncate(time.Minute).Add(-minutes * time.Minute)
	at := func(i, k int) (time.Time, time.Duration) {
		return began.Add(time.Duration((i+k)%minutes)*time.Minute + time.Duration(k%5)*window), window
	}
	s.logf("booking each row once")
	if _, err := t.sendPaced(ctx, f, pace{n: len(f.origins) - 1, each: minutes, at: at}); err != nil {
		return err
	}
	counts := []int{10, 100, 1000}
	costs := make([][]float64, len(counts))
	loads := make([]load, len(counts))
	for round := range rounds {
		for i := range counts {
			k := (i + round) % len(counts) // rotate, so that none is always first
			n := min(counts[k], len(f.origins)-1)
			s.logf("round %d of %d: %d batches/s of %d machines", round+1, rounds, rate, n)
			l, err := t.sendPaced(ctx, f, pace{n: n, rate: rate, length: length, at: at})
			if err != nil {
				return err
			}
			loads[k], costs[k] = *l, append(costs[k], l.CPU+l.DatabaseCPU)
		}
	}
	for k := range loads {
		loads[k].CPU = median(costs[k]) - loads[k].DatabaseCPU
	}
	r.Scale, r.Flat = loads, median(costs[2])/median(costs[0])
	return nil
}

// A preparedBatch is a batch ready to be sent, and the stream before it.
type preparedBatch struct {
	bytes  []byte
	before stream
}

// A pace is how machines send batches of one window each.
type pace struct {
	n      int
	rate   float64 // batches per second in total; 0 means as many as the server takes
	length time.Duration
	each   int // batches of each machine, if there is no length
	probe  bool
	// at returns the begin of the k-th window of the i-th machine, and its length. Without
	// it, windows follow one another up to now.
	at func(i, k int) (time.Time, time.Duration)
}

// maxRate is how many batches per second are prepared for full load, and maxInFlight how
// many wait for their answer at a time.
const maxRate, maxInFlight = 3000, 400

// sendPaced makes the machines send.
func (t *target) sendPaced(ctx context.Context, f *fleet, p pace) (*load, error) {
	n, each := p.n, p.each
	switch {
	case p.rate > 0:
		each = (int(p.rate*p.length.Seconds()) + n - 1) / n
	case p.length > 0:
		each = int(maxRate*p.length.Seconds())/n + 1
	default:
		p.length = time.Hour
	}
	if p.at == nil {
		// They do not begin before the oldest accepted time.
		step := min(window, 4*time.Minute/time.Duration(each))
		began := time.Now().Add(-step * time.Duration(each))
		p.at = func(_, k int) (time.Time, time.Duration) { return began.Add(step * time.Duration(k)), step }
	}
	sent := make([][]preparedBatch, n)
	for i, o := range f.origins[:n] {
		for k := range each {
			from, length := p.at(i, k)
			w := f.window(i+k, o, from, length)
			before := o.live
			b, err := o.live.encode(&batch.Batch{Windows: []usage.Window{w}})
			if err != nil {
				return nil, err
			}
			sent[i] = append(sent[i], preparedBatch{b, before})
		}
	}
	var answers, visible stopwatch
	g, ctx := errgroup.WithContext(ctx)
	own := cpuOf(os.Getpid())
	server, database := t.cpu()
	start := time.Now()
	end := start.Add(p.length)
	var batches atomic.Int64
	taken := make([]int, n)
	offer := func(i, k int) error {
		from := time.Now()
		if err := f.origins[i].send(ctx, sent[i][k].bytes); err != nil {
			return err
		}
		answers.add(time.Since(from))
		batches.Add(1)
		taken[i]++
		return nil
	}
	if p.rate == 0 {
		for w := range maxInFlight {
			g.Go(func() error {
				for k := range each {
					for i := w; i < n; i += maxInFlight {
						if time.Now().After(end) {
							return nil
						}
						if err := offer(i, k); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
	} else {
		for i := range n {
			g.Go(func() error {
				for k := range each {
					sleepUntil(ctx, start.Add(time.Duration(float64(k*n+i)/p.rate*float64(time.Second))))
					if err := offer(i, k); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	if p.probe {
		g.Go(func() error { return t.watch(ctx, f, end, &visible) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, k := range taken {
		if k < each { // unsent batches leave no gap in the stream
			f.origins[i].live = sent[i][k].before
		}
	}
	return t.load(n, batches.Load()*int64(len(f.names)), start, own, server, database, &answers, &visible)
}

// load returns what was measured since start.
func (t *target) load(n int, rows int64, start time.Time, own, server, database time.Duration, answers, visible *stopwatch) (*load, error) {
	took := time.Since(start)
	server2, database2 := t.cpu()
	thousand := float64(rows) / 1000
	l := &load{
		Origins: n, Seconds: took.Seconds(), Rows: rows, RowsPerSecond: float64(rows) / took.Seconds(),
		Cores: (server2 - server).Seconds() / took.Seconds(), CPU: (server2 - server).Seconds() / thousand,
		DatabaseCPU: (database2 - database).Seconds() / thousand, OriginsCPU: (cpuOf(os.Getpid()) - own).Seconds() / thousand,
		AnswerP50: answers.quantile(0.5), AnswerP99: answers.quantile(0.99), VisibleP50: visible.quantile(0.5), VisibleP99: visible.quantile(0.99),
	}
	var err error
	l.RSS, l.PeakRSS, err = memoryOf(t.cmd.Process.Pid)
	return l, err
}

func sleepUntil(ctx context.Context, t time.Time) {
	select {
	case <-time.After(time.Until(t)):
	case <-ctx.Done():
	}
}

// watch sends windows of one machine at intervals, and queries each until it is visible:
// the delay from the end of the window.
func (t *target) watch(ctx context.Context, f *fleet, end time.Time, visible *stopwatch) error {
	o := f.origins[len(f.origins)-1]
	live := newStream()
	ask := func(since time.Time) (int64, error) {
		a, err := t.reader.Usage(ctx, v1.UsageQuery{Query: query.Query{From: since.Truncate(time.Minute), To: since.Add(2 * time.Minute),
			By: []query.Dimension{query.ByKind}, Where: map[query.Dimension][]string{query.ByNode: {o.name}}}})
		if err != nil {
			return 0, err
		}
		var covered unit.Sum
		for i := range a.Groups {
			if a.Groups[i].Get("cpu_seconds").Quality != usage.Absent {
				covered = covered.Plus(a.Groups[i].Covered)
			}
		}
		return covered.Int64(), nil
	}
	once := func() error {
		since := time.Now().Add(-time.Second)
		before, err := ask(since)
		if err != nil {
			return err
		}
		closed := time.Now()
		b, err := live.encode(&batch.Batch{Windows: []usage.Window{f.window(0, o, closed.Add(-time.Second), time.Second)}})
		if err != nil {
			return err
		}
		if err := o.send(ctx, b); err != nil {
			return err
		}
		for after := before; after == before; {
			if after, err = ask(since); err != nil {
				return err
			}
			if time.Since(closed) > time.Minute {
				return fmt.Errorf("a window of %s is not visible after a minute; its gaps may say why", o.name)
			}
		}
		visible.add(time.Since(closed))
		sleepUntil(ctx, closed.Add(time.Second))
		return nil
	}
	sleepUntil(ctx, time.Now().Add(time.Second)) // the machine enrolled with a window that ended now
	for time.Now().Before(end) && ctx.Err() == nil {
		if err := once(); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

func (r *report) checkBudgets() {
	lite := r.Database == "sqlite"
	fail := func(bad bool, format string, args ...any) {
		if bad {
			r.OverBudget = append(r.OverBudget, fmt.Sprintf(format, args...))
		}
	}
	if r.Sample > 0 {
		fail(r.Sample > budgetSample, "%.1f bytes per sample, budget %d", r.Sample, budgetSample)
	}
	if r.Full != nil && lite {
		// Rows per core: the machine is shared with the senders.
		perCore := r.Full.RowsPerSecond / r.Full.Cores * budgetCores
		fail(perCore < budgetRows, "%.0f rows/s a core, budget %d", perCore, budgetRows)
	}
	if r.Flat > 0 {
		fail(r.Flat > 1+budgetFlat, "a row of 1000 origins costs %.2f times one of 10, budget %.1f", r.Flat, 1+budgetFlat)
	}
	for _, q := range r.Queries {
		fail(q.Budget > 0 && q.Seconds > q.Budget, "%s: %.2f s, budget %.0f s", q.What, q.Seconds, q.Budget)
		fail(q.PeakRSS > budgetMemory, "%s: %d MiB, budget %d", q.What, q.PeakRSS>>20, budgetMemory>>20)
	}
	if m := r.Compared; m != nil {
		fail(m.Ratio > budgetPrometheus, "a sample costs %.2f times what it costs Prometheus, budget %.1f", m.Ratio, budgetPrometheus)
	}
	if d := r.Drain; d != nil {
		fail(d.PeakRSS > budgetMemory, "drain: %d MiB, budget %d", d.PeakRSS>>20, budgetMemory>>20)
		fail(d.VisibleP99 > budgetVisible || d.AnswerP99 > budgetVisible, "live windows are visible after %.0f ms while backlogs drain, budget %d", max(d.VisibleP99, d.AnswerP99), budgetVisible)
	}
}

func (r *report) show() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\torigins\trows/s\tserver cores\tCPU s/1000 rows\tdatabase\torigins'\tanswer p50 ms\tp99\tvisible p50 ms\tp99\tRSS MiB\tpeak\t\n", r.Database)
	line := func(name string, l *load) {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.2f\t%.4f\t%.4f\t%.4f\t%.1f\t%.1f\t%.1f\t%.1f\t%d\t%d\t\n", name, l.Origins, l.RowsPerSecond, l.Cores,
			l.CPU, l.DatabaseCPU, l.OriginsCPU, l.AnswerP50, l.AnswerP99, l.VisibleP50, l.VisibleP99, l.RSS>>20, l.PeakRSS>>20)
	}
	if r.Live != nil {
		line("live", r.Live)
	}
	if r.Full != nil {
		line("full", r.Full)
	}
	for i := range r.Scale {
		line("scale", &r.Scale[i])
	}
	if r.Drain != nil {
		line("drain", &r.Drain.load)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Sample > 0 {
		fmt.Printf("wire: %.2f bytes a sample\n", r.Sample)
	}
	if r.Flat > 0 {
		fmt.Printf("CPU a row, 1000 to 10 origins: %.2f\n", r.Flat)
	}
	for _, q := range r.Queries {
		fmt.Printf("%s: %.2f s, CPU %.2f s, database %.2f s, %d groups, RSS %d MiB, peak %d MiB\n", q.What, q.Seconds, q.CPU, q.DBCPU, q.Groups, q.RSS>>20, q.PeakRSS>>20)
	}
	if r.Drain != nil {
		fmt.Printf("drain: %d backlog rows in %.0f s, %d retries\n", r.Drain.BacklogRows, r.Drain.Seconds, r.Drain.Retries)
	}
	if r.Compared != nil {
		r.Compared.show()
	}
	for _, o := range r.OverBudget {
		fmt.Println("OVER BUDGET:", o)
	}
	return nil
}
