package server

import (
	"github.com/spf13/pflag"

	"mete.dev/mete/internal/prom/api"
)

// addQueryFlags adds the flags for PromQL queries.
func addQueryFlags(f *pflag.FlagSet, c *api.Config) {
	f.Var((*sizeFlag)(&c.Memory), "query-memory", "PromQL queries together hold about `SIZE` of memory, as 512MiB; what takes more is refused (default: a quarter of GOMEMLIMIT or of what the server may have, at most 8 GiB)")
	f.DurationVar(&c.Timeout, "query-timeout", c.Timeout, "`TIME` that one query may take; half of it that it may wait for its turn")
	f.IntVar(&c.Parallel, "query-parallel", c.Parallel, "`NUMBER` of queries that are computed at once; of large ones it is a quarter, and no more than half of the CPUs")
	f.StringVar(&c.Log, "query-log", "", "`FILE` to which each query is written as a line of JSON, with its client and its cost; the file may be moved at any time")
	f.DurationVar(&c.Slow, "query-slow", c.Slow, "the server logs queries that take this `TIME` or more (0s: none)")
}
