// Package query holds the nouns of asking a ledger: what is asked (Query), and
// what comes back (Answer, Node, Source, Workload, Gap).
package query

import (
	"cmp"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Dimension is something by which usage can be grouped and filtered.
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

// A Query asks for sums over a range of time.
type Query struct {
	From, To time.Time              // [From, To); cut to whole minutes outward
	By       []Dimension            // at least one
	Where    map[Dimension][]string // rows whose value is one of these; "" is none
	Scope    Scope
	Limit    int // at most so many groups; 0 is the store's own limit
	// Top says which groups will be seen, where that is not all: of the others the
	// answer may have the sum alone, as its rest.
	Top *Top
	// Resources are those of which amounts are asked for: what is not among them is
	// not present in the answer, and need not be read. 0 is all. CPU time is always
	// there.
	Resources usage.Set
	// OmitOwn leaves out what mete's own programs used: see [OwnNames].
	OmitOwn bool
	// Idle says by what the energy that machines use while idle is divided among
	// the workloads on them: one of the words of power.Policy, "" is none. It
	// changes who has it, and no sum.
	Idle string
	// Nested says what becomes of nodes that are guests of others, whose figures
	// they are within: they are left out where it is "".
	Nested string
}

// A Top is the groups with the most of something, and some that are always seen.
type Top struct {
	Limit      int
	Rank       func(keys []string, u *Total, over time.Duration) Rank // over which averages are taken
	AlwaysKept func(keys []string) bool                               // beside those N
}

// A Rank is where a group stands among others.
type Rank struct {
	Amount unit.Sum
	Absent bool
	Keys   []string
}

// Compare puts the one with more first, what is absent last, and what is equal by its
// keys.
func (r *Rank) Compare(o *Rank) int {
	switch {
	case r.Absent == o.Absent:
		return cmp.Or(o.Amount.Compare(r.Amount), slices.Compare(r.Keys, o.Keys))
	case o.Absent:
		return -1
	}
	return 1
}

// The words for what becomes of guests.
const (
	NestedOnly = "only" // the question is about them, and nothing else
	NestedAlso = "also" // they have groups of their own beside those of all others
)

// OwnNames are the names of the workloads that mete's own programs run in, as their
// units and containers are called.
var OwnNames = []string{"mete", "mete-agent", "mete-server", "mete.service", "mete-agent.service", "mete-server.service", "mete-up.service"}

// Scope is what a query may see. Its zero value sees nothing.
type Scope struct {
	All      bool
	Clusters []string
	Projects []string
}

// An Answer is what a query found.
type Answer struct {
	// From and To are the range that the sums are of: wider than was asked
	// where minutes are not kept any more and only whole hours or days are.
	From, To time.Time
	By       []Dimension
	Groups   []Group // by falling CPU time
	Gaps     int     // gaps that touch the range
	Idle     string  // as it was asked

	// Capacity is what the nodes that the scope covers had of the usage.Wholes,
	// skew included: without filters it is the sum of all groups. What is not
	// present was not asked for, has been filtered, or, of energy, was seen by
	// nobody.
	Capacity Total
	// Other is what the groups beyond the limit used together, and OtherGroups how
	// many they are. A ledger has those in it that are not in Query.Top, if any, and
	// leaves all else to who asks it.
	Other       Total
	OtherGroups int
	// AveragedOver is the length of time over which averages are taken: for how long
	// within the range the node that was measured longest was measured.
	AveragedOver time.Duration

	// Nested is as it was asked, or NestedAlso where the question was by node.
	Nested string
	// NestedNodes is how many nodes the question would be about, were they not
	// guests of others that it is about.
	NestedNodes int
	// NestedGroups are theirs, where they were asked for beside the others: no sum
	// has them. NestedOmitted is how many there are beyond the limit.
	NestedGroups  []Group
	NestedOmitted int
}

// A Group is what the workloads of one group used.
type Group struct {
	Keys  []string // in the order of By; "" is none
	Nodes int      // how many nodes it ran on
	// First and Last are the first minute's start and the last one's end with use.
	First, Last time.Time
	Usage       Total
}

// A Total is a sum of usage that does not overflow.
type Total struct {
	Present usage.Set
	Quality usage.Qualities
	Covered time.Duration // summed over the group's workloads
	Sum     [usage.Limit]unit.Sum

	// ClaimCPU and ClaimCovered are of CPU time and Covered what is of rows that can
	// claim idle energy: all but those that were given theirs when they were booked.
	ClaimCPU     unit.Sum // ns
	ClaimCovered time.Duration

	// Idle is the part that idle machines used, where it was divided: it is
	// beside the energy of the resources then, and IdleError is by how much it may
	// be off. Else IdleQuality is Absent, and it is in the resources of what is
	// idle.
	Idle, IdleError unit.Sum // uJ
	IdleQuality     usage.Quality
}

// Add adds v to t: amounts add up, of peaks the higher one stays, and the worse
// quality wins.
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
	t.Covered += v.Covered
	t.ClaimCPU, t.ClaimCovered = t.ClaimCPU.Plus(v.ClaimCPU), t.ClaimCovered+v.ClaimCovered
	t.Idle, t.IdleError = t.Idle.Plus(v.Idle), t.IdleError.Plus(v.IdleError)
	t.IdleQuality = max(t.IdleQuality, v.IdleQuality)
}

// Energy is the energy of all domains, without Idle, and the worst of their
// qualities: Absent where there is none.
func (t *Total) Energy() (sum unit.Sum, q usage.Quality) {
	for _, r := range usage.Energies {
		if t.Present.Has(r) {
			sum, q = sum.Plus(t.Sum[r]), max(q, t.Quality.Get(r))
		}
	}
	return sum, q
}

// AllEnergy is the energy of all domains, Idle included, and the worst quality.
func (t *Total) AllEnergy() (unit.Sum, usage.Quality) {
	sum, q := t.Energy()
	return sum.Plus(t.Idle), max(q, t.IdleQuality)
}

// A Node is a machine as the ledger knows it.
type Node struct {
	ID, Name, Cluster string
	MachineID         string
	Boot              string
	CPUs              int
	Enrolled          time.Time
	Through           time.Time // up to when it is booked
	Streams           int       // that are open
	State             string    // "live", "behind", "silent", "revoked"
	Revoked           time.Time // zero where it is not
	Source            string    // the server below that tells of it; "" where it sends itself
	Nested            *Nesting  // nil where it is no guest now
}

// A Nesting says in which other node a node is: what it used is within what that
// one had, as found by shares of energy that both told of and that were equal.
type Nesting struct {
	Host, HostName string
	Workload       workload.ID // what the guest is there; "" where that has no name yet
	Name           string      // of the workload
	Since, Seen    time.Time   // the first and the latest equal share; zero where that is not known here
}

// A VM is a virtual machine that a host gave energy, and how that compares with
// what the guest says of itself, in a range.
type VM struct {
	Guest          string // UUID
	Name           string // of the domain
	Host, HostName string
	Workload       workload.ID // what it is on the host; "" where that has no name yet
	Node, NodeName string      // the guest's own; "" where nothing in it tells of shares
	// Compared is how many shares both told of, and Differing how many of those
	// were not equal, by Largest uJ at most.
	Compared, Differing, Largest int64
	N                            int64     // of the latest that was compared
	Last                         time.Time // when that was; zero where none was
	// Usage is what it used by its host's figures, of energy.
	Usage Total
}

// A Source is a server below, which tells of its nodes.
type Source struct {
	ID, Name, Cluster string
	Nodes             int    // that it tells of
	Pages             uint64 // that were taken from it
	Epoch             string // of its ledger as far as it was taken; "" before the first page
	Enrolled          time.Time
	Seen              time.Time // when a page of it was taken last
	Through           time.Time // up to when the furthest of its nodes is booked there
	State             string    // "live", "behind", "silent", "revoked"
	Revoked           time.Time // zero where it is not
}

// A Gap is a gap of a node, or a moment from which on its clock was corrected:
// then From and To are that moment, and nothing is missing.
type Gap struct {
	Node, Name string
	usage.Gap
	Booked time.Time
	Shift  time.Duration // that was added to the times of what was measured; 0 for a gap
}

// A Workload is a workload as the ledger knows it.
type Workload struct {
	Node, Cluster string
	batch.Name
	First, Last time.Time // minutes with use
}
