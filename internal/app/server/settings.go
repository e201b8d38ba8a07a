package server

import (
	"errors"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/server"
	"mete.dev/mete/internal/x/settings"
)

// defaultListen is all addresses of the machine.
const defaultListen = ":9797"

// Settings returns the table of the settings of the command.
func Settings() *settings.Set {
	c := config{Config: server.Default(), listen: defaultListen}
	return c.settings()
}

// settings returns the table, whose values are those of c.
func (c *config) settings() *settings.Set {
	s := settings.New("server")
	s.Text(&c.listen, "listen", "ADDRESS", "address and port to serve on (port 0: any free one)").Check(settings.Address)
	s.Text(&c.State, "state", "DIR", "directory of what the server keeps (default: server in the state directory of mete)")
	s.Text(&c.Database, "database", "LEDGER", "ledger: a file for SQLite, or postgres://USER@HOST/NAME (default: ledger.db in --state)").SecretURL("PostgreSQL's own file holds passwords: PGPASSFILE or ~/.pgpass")
	s.List(&c.Names, "name", "HOST", "host name or address under which agents reach the server, beside its own; may be repeated")
	s.Switch(&c.insecure, "insecure", "serve plain HTTP, on this machine only: to programs of the same user and of root without a token, to others with one")
	s.Var((*age)(&c.Ledger.Minutes), settings.Duration, "keep-minutes", "DURATION", "keep minutes for DURATION, as 7d or 48h; then hours")
	s.Var((*age)(&c.Ledger.Hours), settings.Duration, "keep-hours", "DURATION", "keep hours for DURATION; then days, which stay")
	s.Var((*age)(&c.Metrics.Retention), settings.Duration, "keep-metrics", "DURATION", "keep samples for DURATION: what charts and PromQL see")
	s.Size(&c.Metrics.MaxBytes, 1, 1<<60, "metrics-size", "keep at most SIZE of samples on disk, as 20GiB; the oldest go first (default: no limit)")
	s.Size(&c.Query.Memory, 1, 1<<50, "query-memory", "PromQL queries together hold about SIZE of memory, as 512MiB; what takes more is refused (default: a quarter of GOMEMLIMIT or of what the server may have, at most 8 GiB)")
	s.Duration(&c.Query.Timeout, time.Millisecond, 24*time.Hour, "query-timeout", "time that one query may take; half of it that it may wait for its turn")
	s.Number(&c.Query.Parallel, 1, 1<<10, "query-parallel", "N", "number of queries that are computed at once; of large ones it is a quarter, and no more than half of the CPUs")
	s.Text(&c.Query.Log, "query-log", "FILE", "file to which each query is written as a line of JSON, with its client and its cost; the file may be moved at any time")
	s.Duration(&c.Query.Slow, 0, 24*time.Hour, "query-slow", "the server logs queries that take this time or more (0s: none)")
	c.up.add(s)
	s.Text(&c.meters, "meters", "FILE", "file of meters outside the machines (YAML), which are read and booked here")
	c.alerts.add(s)
	c.remote.add(s)
	c.kube.add(s)
	c.slurm.add(s)
	s.Switch(&c.debug, "debug", "log more")
	return s
}

// An age is a length of time that is printed in days where possible.
type age time.Duration

func (a *age) String() string { return v1.FormatLength(time.Duration(*a)) }

func (a *age) Set(s string) error {
	d, err := v1.ParseLength(s)
	if err != nil {
		return errors.New("write it as 7d, 48h or 90m")
	}
	*a = age(d)
	return nil
}
