// Package query holds the nouns of asking a ledger: what is asked (Query), and
// what comes back (Answer, Node, Source, Workload, Gap).
package query

import (
	"time"

	"mete.dev/mete/internal/batch"
	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/unit"
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
	// OmitOwn leaves out what mete's own programs used: see [Own].
	OmitOwn bool
	// Idle says by what the energy that machines use while idle is divided among
	// the workloads on them: one of the words of energy.Policy, "" is none. It
	// changes who has it, and no sum.
	Idle string
}

// Own are the names of the workloads that mete's own programs run in, as their
// units and containers are called.
var Own = []string{"mete", "mete-agent", "mete-server", "mete.service", "mete-agent.service", "mete-server.service", "mete-up.service"}

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

	// Whole is what the nodes that the scope covers had of the meter.Wholes,
	// skew included: without filters it is the sum of all groups. What is not
	// present was not asked for, has been filtered, or, of energy, was seen by
	// nobody.
	Whole Total
	// Rest is what the groups beyond the limit used together, and RestGroups how
	// many they are. A ledger leaves both to who asks it.
	Rest       Total
	RestGroups int
	// Over is the length of time over which averages are taken: for how long
	// within the range the node that was measured longest was measured.
	Over time.Duration
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
	Present meter.Set
	Quality meter.Qualities
	Covered time.Duration // summed over the group's workloads
	Sum     [meter.Limit]unit.Sum

	// Idle is the part that idle machines used, where it was divided: it is
	// beside the energy of the resources then, and IdleError is by how much it may
	// be off. Else IdleQuality is Absent, and it is in the resources of what is
	// idle.
	Idle, IdleError unit.Sum // uJ
	IdleQuality     meter.Quality
}

// Add adds v to t: amounts add up, of peaks the higher one stays, and the worse
// quality wins.
func (t *Total) Add(v *Total) {
	v.Present.Each(func(r meter.Resource) {
		t.Quality.Worsen(r, v.Quality.Get(r))
		switch {
		case !t.Present.Has(r):
			t.Present |= 1 << r
			t.Sum[r] = v.Sum[r]
		case r.Detail().Kind == meter.Peak:
			if v.Sum[r].Compare(t.Sum[r]) > 0 {
				t.Sum[r] = v.Sum[r]
			}
		default:
			t.Sum[r] = t.Sum[r].Plus(v.Sum[r])
		}
	})
	t.Covered += v.Covered
	t.Idle, t.IdleError = t.Idle.Plus(v.Idle), t.IdleError.Plus(v.IdleError)
	t.IdleQuality = max(t.IdleQuality, v.IdleQuality)
}

// Energy is the energy of all domains, without Idle, and the worst of their
// qualities: Absent where there is none.
func (t *Total) Energy() (sum unit.Sum, q meter.Quality) {
	for _, r := range meter.Energies {
		if t.Present.Has(r) {
			sum, q = sum.Plus(t.Sum[r]), max(q, t.Quality.Get(r))
		}
	}
	return sum, q
}

// AllEnergy is the energy of all domains, Idle included, and the worst quality.
func (t *Total) AllEnergy() (unit.Sum, meter.Quality) {
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
	meter.Gap
	Booked time.Time
	Shift  time.Duration // that was added to the times of what was measured; 0 for a gap
}

// A Workload is a workload as the ledger knows it.
type Workload struct {
	Node, Cluster string
	batch.Name
	First, Last time.Time // minutes with use
}

// Latest is the latest window of a node.
type Latest struct {
	Node, Name, Cluster string
	From, To            time.Time
	CPUs                int
	Rows                []LatestRow
}

// A LatestRow is what one workload used in it.
type LatestRow struct {
	batch.Name
	Usage meter.Usage
}
