package v1

import "mete.dev/mete/internal/model/query"

// A Dimension says how many workloads have a value of a dimension.
type Dimension struct {
	Name      query.Dimension `json:"dimension" doc:"as in by and where"`
	Workloads int64           `json:"workloads" doc:"number of workloads with a value, of all that the ledger knows; 0 means that no workload here has one"`
}

// ListKey implements [Element].
func (Dimension) ListKey() string { return "dimensions" }

// DimensionOf makes a Dimension.
func DimensionOf(d *query.DimensionCount) Dimension { return Dimension{d.Dimension, d.Workloads} }
