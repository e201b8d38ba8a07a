// Package query holds the types for querying a ledger: the query (Query) and the answers (Answer,
// Node, Source, Workload, Gap, Connections).
package query

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Dimension is a property by which usage can be grouped and filtered.
type Dimension string

// The dimensions. A label is ByLabel + its key: "label:app".
const (
	ByCluster   Dimension = "cluster"
	ByNode      Dimension = "node"
	ByWorkload  Dimension = "workload"
	ByKind      Dimension = "kind"
	ByJob       Dimension = "job"
	ByUser      Dimension = "user"
	ByProject   Dimension = "project"
	ByNamespace Dimension = "namespace"
	ByPod       Dimension = "pod"
	ByContainer Dimension = "container"
	ByLabel     Dimension = "label:"
)

// A Query requests sums over a range of time.
type Query struct {
	From, To time.Time              // [From, To), extended to whole minutes
	By       []Dimension            // at least one
	Where    map[Dimension][]string // rows with one of these values; "" matches rows without a value
	Scope    Scope
	Limit    int // maximum number of groups; 0 is the store's own limit
	// After is the key of the last workload of the previous page of a list; see [Workload.PageKey].
	After string
	// Top selects the groups to return, if not all: the others may be summed in Other.
	Top *Top
	// Resources are the resources to return; others are not present in the answer and need not be
	// read. 0 is all. CPU time is always included.
	Resources usage.Set
	// Unused asks for what was reserved and not used: see [Total.Unused].
	Unused bool
	// OmitOwn leaves out the use of mete's own programs: see [OwnNames].
	OmitOwn bool
	// Idle is the policy for dividing the idle energy of machines among their workloads: a word of
	// power.Policy, "" is none. It changes no total.
	Idle string
	// Nested says how to treat nodes that are guests of others and within their figures; "" leaves
	// them out.
	Nested string
}

// A Top selects the groups with the highest rank, and some that are always kept.
type Top struct {
	Limit      int
	Rank       func(keys []string, u *Total, over time.Duration) Rank // over is the time for averages
	AlwaysKept func(keys []string) bool                               // in addition to Limit groups
}

// A Rank is the sort key of a group.
type Rank struct {
	Amount unit.Sum
	Absent bool
	Keys   []string
}

// Compare orders the larger amount first, absent ones last, and equal ones by keys.
func (r *Rank) Compare(o *Rank) int {
	switch {
	case r.Absent == o.Absent:
		return cmp.Or(o.Amount.Compare(r.Amount), slices.Compare(r.Keys, o.Keys))
	case o.Absent:
		return -1
	}
	return 1
}

// A Period is the length of the periods of usage over time.
type Period time.Duration

// The periods, which begin at UTC hours and days.
const (
	Hourly = Period(time.Hour)
	Daily  = Period(24 * time.Hour)
)

// Values of Query.Nested.
const (
	NestedOnly = "only" // sum guests and nothing else
	NestedAlso = "also" // guests have groups of their own beside all others
)

// OwnNames are the names of workloads in which mete's own programs run: their units and containers.
var OwnNames = []string{"mete", "mete-agent", "mete-server", "mete.service", "mete-agent.service", "mete-server.service", "mete-up.service"}

// Scope is what a query may see. The zero value sees nothing.
type Scope struct {
	All      bool
	Clusters []string
	Projects []string
}

// OptionalDimensions are those that workloads may lack, besides labels.
var OptionalDimensions = []Dimension{ByJob, ByUser, ByProject, ByNamespace, ByPod, ByContainer}

// A DimensionCount is how many workloads have a value of a dimension.
type DimensionCount struct {
	Dimension Dimension
	Workloads int64
}

// An Answer is the result of a query.
type Answer struct {
	// From and To are the range of the sums: wider than requested where minutes are no longer kept.
	From, To time.Time
	By       []Dimension
	Groups   []Group // by descending CPU time
	Gaps     int     // gaps that overlap the range
	Idle     string  // as requested

	// Capacity is the usage.Wholes of the nodes in scope, skew included: without filters it is the
	// sum of all groups. A resource is absent if it was not requested, is filtered, or was not
	// measured.
	Capacity Total
	// Other sums the groups that were left out, and OtherGroups is their number. A ledger adds
	// those outside Query.Top; its callers add others.
	Other       Total
	OtherGroups int
	// AveragedOver is the time for averages: how long the longest-measured node was measured within
	// the range.
	AveragedOver time.Duration

	// Nested is as requested, or NestedAlso for a query by node.
	Nested string
	// NestedNodes is how many nodes the query would cover if they were not guests of covered nodes.
	NestedNodes int
	// NestedGroups are the groups of these guests, if requested; they are in no sum. NestedOmitted
	// is their number beyond the limit.
	NestedGroups  []Group
	NestedOmitted int
}

// A Group is the use of the workloads of one group.
type Group struct {
	Keys  []string // in the order of By; "" means no value
	Nodes int      // number of nodes it ran on
	// First and Last are the start of the first minute with use and the end of the last one.
	First, Last time.Time
	Usage       Total
}

// A Total is a sum of usage that does not overflow.
type Total struct {
	Present usage.Set
	Quality usage.Qualities
	Covered unit.Sum // ns, summed over the group's workloads
	Sum     [usage.Limit]unit.Sum

	// Idle is the part of divided idle energy: it is in addition to the energy of the resources,
	// and IdleError is its error. If IdleQuality is Absent, idle energy is in the resources of the
	// idle group.
	Idle, IdleError unit.Sum // uJ
	IdleQuality     usage.Quality

	// Unused is what was reserved and not used, by index of [Reservable]. It is summed over pods, so what one
	// pod uses beyond what it reserves is not deducted from what another one does not use. It is absent if it
	// was not requested, or nothing was reserved.
	Unused [len(Reservable)]Unused
}

// A Reserving is a resource that is both reserved and measured.
type Reserving struct{ Reserved, Used usage.Resource }

// Reservable are the resources that are both reserved and measured.
var Reservable = [2]Reserving{{usage.CPUReserved, usage.CPU}, {usage.MemoryReserved, usage.Memory}}

// An Unused is an amount that was reserved and not used, in the unit of the resource.
type Unused struct {
	Sum     unit.Sum
	Quality usage.Quality
}

// Add adds v to u. The worse quality wins.
func (u *Unused) Add(v Unused) { u.Sum, u.Quality = u.Sum.Plus(v.Sum), max(u.Quality, v.Quality) }

// Add adds v to t: amounts add up, of peaks the higher one stays, and the worse quality wins.
func (t *Total) Add(v *Total) {
	v.Present.Each(func(r usage.Resource) {
		t.Quality.Worsen(r, v.Quality.Get(r))
		switch {
		case !t.Present.Has(r):
			t.Present |= 1 << r
			t.Sum[r] = v.Sum[r]
		case r.Detail().Kind == usage.Peak:
			if v.Sum[r].Compare(t.Sum[r]) > 0 {
				t.Sum[r] = v.Sum[r]
			}
		default:
			t.Sum[r] = t.Sum[r].Plus(v.Sum[r])
		}
	})
	t.Covered = t.Covered.Plus(v.Covered)
	t.Idle, t.IdleError = t.Idle.Plus(v.Idle), t.IdleError.Plus(v.IdleError)
	t.IdleQuality = max(t.IdleQuality, v.IdleQuality)
	for i := range t.Unused {
		t.Unused[i].Add(v.Unused[i])
	}
}

// Energy returns the energy of all domains without Idle, and the worst quality; Absent if there is
// none.
func (t *Total) Energy() (sum unit.Sum, q usage.Quality) {
	for _, r := range usage.Energies {
		if t.Present.Has(r) {
			sum, q = sum.Plus(t.Sum[r]), max(q, t.Quality.Get(r))
		}
	}
	return sum, q
}

// AllEnergy returns the energy of all domains including Idle, and the worst quality.
func (t *Total) AllEnergy() (unit.Sum, usage.Quality) {
	sum, q := t.Energy()
	return sum.Plus(t.Idle), max(q, t.IdleQuality)
}

// A Node is the ledger's state of a machine.
type Node struct {
	ID, Name, Cluster string
	MachineID         string
	Boot              string
	CPUs              int
	Enrolled          time.Time
	Through           time.Time // end of the latest booked window
	Streams           int       // number of open streams
	State             string    // "live", "behind", "silent", "revoked"
	Revoked           time.Time // zero if not revoked
	Source            string    // the downstream server that reports it; "" if it sends here itself
	Nested            *Nesting  // nil if it is not a guest now
}

// A Nesting says that a node is within the figures of another one, as shown by equal shares of
// energy that both reported.
type Nesting struct {
	Host, HostName string
	Workload       workload.ID // the guest's workload on the host; "" if its name is unknown
	Name           string      // of the workload
	Since, Seen    time.Time   // the first and the latest equal share; zero if unknown here
}

// A VM is a virtual machine that a host gave energy in a range, compared with what the guest
// reports.
type VM struct {
	Guest          string // UUID
	Name           string // of the domain
	Host, HostName string
	Workload       workload.ID // its workload on the host; "" if its name is unknown
	Node, NodeName string      // the guest's own node; "" if no agent in it reports shares
	// Compared is the number of shares that both reported, and Differing how many of those
	// differed, by at most Largest uJ.
	Compared, Differing, Largest int64
	N                            int64     // of the latest compared share
	Last                         time.Time // when it was compared; zero if none was
	// Usage is the guest's energy by its host's figures.
	Usage Total
}

// A Source is a downstream server.
type Source struct {
	ID, Name, Cluster string
	Nodes             int    // number of nodes that it reports
	Pages             uint64 // taken from it
	Epoch             string // of its ledger, as of the latest page; "" before the first
	Enrolled          time.Time
	Seen              time.Time // when its latest page was taken
	Through           time.Time // end of the latest booked window of its nodes
	State             string    // "live", "behind", "silent", "revoked"
	Revoked           time.Time // zero if not revoked
}

// MaxGaps is the largest number of gaps and clock corrections in a list. A ledger returns one more if
// there are more.
const MaxGaps = 10_000

// A Gap is a gap of a node, or the correction of its clock: then From and To are the instant from
// which it applies, and nothing is missing.
type Gap struct {
	Node, Name string
	usage.Gap
	Booked time.Time
	Shift  time.Duration // added to the times of measurements; 0 for a gap
}

// A Workload is the ledger's state of a workload.
type Workload struct {
	Row           int64 // number in the ledger
	Node, Cluster string
	batch.Name
	First, Last time.Time    // first and last minute with use
	PartOf      workload.Run // the run that it is a part of, if that is not itself a workload
}

// PageKey returns the unique text by which workloads are ordered: cluster, node, and name with id, or
// with the number of one that has no id yet.
func (w *Workload) PageKey() string {
	id := string(w.ID)
	if id == "" {
		id = strconv.FormatInt(w.Row, 10)
	}
	return w.Cluster + "\x00" + w.Node + "\x00" + w.Name.Name + id
}
