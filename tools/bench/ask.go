package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
)

// A queryCost is the cost of one query.
type queryCost struct {
	What    string  `json:"what"`
	Seconds float64 `json:"seconds"` // median of 3
	CPU     float64 `json:"server_cpu_seconds"`
	DBCPU   float64 `json:"database_cpu_seconds,omitempty"`
	Groups  int     `json:"groups"`
	RSS     int64   `json:"server_rss_bytes"`
	PeakRSS int64   `json:"server_peak_rss_bytes"`
	Budget  float64 `json:"budget_seconds,omitempty"`
}

// measureQueries measures queries to a ledger with a month of many workloads.
func (s *serverFlags) measureQueries(ctx context.Context, dir string) (out []queryCost, err error) {
	if dir, err = sub(dir, "ask"); err != nil {
		return nil, err
	}
	d, err := openDatabase(dir, s.database)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	h := s.history
	h.days, h.nodes, h.end = 30, max(h.workloads/100, 1), time.Now().UTC().Truncate(24*time.Hour)
	s.logf("writing %d days of %d workloads", h.days, h.workloads)
	if err := seed(ctx, d.dsn, h); err != nil {
		return nil, err
	}
	s.logf("asking")
	for _, q := range []struct {
		by     query.Dimension
		budget float64
	}{{query.ByNamespace, budgetGroups}, {query.ByLabel + "app", budgetLabel}, {query.ByJob, 0}} {
		a, err := s.measureQuery(ctx, dir, d, h, q.by)
		if err != nil {
			return nil, err
		}
		a.Budget = q.budget
		out = append(out, a)
	}
	return out, nil
}

// measureQuery measures a query on a server of its own, so that its memory is known.
func (s *serverFlags) measureQuery(ctx context.Context, dir string, d *database, h history, by query.Dimension) (a queryCost, err error) {
	if dir, err = os.MkdirTemp(dir, "question-"); err != nil {
		return a, err
	}
	t, err := openTarget(ctx, s.bin, dir, d)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	a.What = fmt.Sprintf("%d days of %d workloads by %s", h.days, h.workloads, by)
	var walls, cpus, databases []float64
	for range 3 {
		start := time.Now()
		server, database := t.cpu()
		answer, err := t.reader.Usage(ctx, v1.UsageQuery{Query: query.Query{From: h.end.AddDate(0, 0, -h.days), To: h.end, By: []query.Dimension{by}}})
		if err != nil {
			return a, err
		}
		walls = append(walls, time.Since(start).Seconds())
		server2, database2 := t.cpu()
		cpus, databases = append(cpus, (server2-server).Seconds()), append(databases, (database2-database).Seconds())
		a.Groups = len(answer.Groups) + answer.RestGroups
	}
	a.Seconds, a.CPU, a.DBCPU = median(walls), median(cpus), median(databases)
	a.RSS, a.PeakRSS, err = memoryOf(t.cmd.Process.Pid)
	return a, err
}
