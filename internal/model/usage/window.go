package usage

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// An Identity says whose use a row is: one life of a workload. Rows share it, so
// it does not change once a row refers to it.
type Identity struct {
	workload.Workload
	Life   workload.Life
	Parent workload.ID // of the workload above; "" for those at the top
}

// A Row is what one life of a workload used in a window.
type Row struct {
	// ShortID is of the workload. It is 0 where the row belongs to no workload yet,
	// or to one whose ID is malformed.
	ShortID workload.ShortID
	// Workload is nil where no more than the ShortID is known: in a window that came
	// over the wire, rows do not say of which life they are.
	Workload *Identity
	Usage    Usage
	// Total is, for the counters and integrals in Has, the cumulative amount that
	// was booked to this workload since its life began, this window included, modulo
	// 2^63, which 1 TiB of memory reaches in 97 days. It only grows up to there, also
	// over restarts of the agent. A total less than Usage restarted from zero in this
	// window. Of what is not in Has it is that of the row before plus Usage.
	Has   Set
	Total [Limit]int64
	Ended bool // the life ended in this window
	// Connections is with whom the workload exchanged the network traffic in Usage, as far as that is known: no more than it in
	// a direction; nil if nothing is known. Rows share it, so it does not change once a row refers to it.
	Connections *connection.Sketch
}

// NewRow returns a row of a workload that used nothing.
func NewRow(of *Identity) Row {
	short, _ := workload.ShortIDOf(of.ID)
	return Row{ShortID: short, Workload: of}
}

// Life is the life of the workload; zero where it is not known.
func (r *Row) Life() workload.Life {
	if r.Workload == nil {
		return workload.Life{}
	}
	return r.Workload.Life
}

// IsWholeLife reports whether the workload's life began and ended within the row, as far as its totals say.
func (r *Row) IsWholeLife() bool { return r.Ended && r.HasBegun() }

// HasBegun reports whether the workload's life began within the row, as far as its totals say.
func (r *Row) HasBegun() bool {
	begun := true
	r.Has.Each(func(res Resource) { begun = begun && r.Total[res] == r.Usage.Amount[res] })
	return begun
}

// A Window is what every workload of a machine used between two instants of
// CLOCK_BOOTTIME. Windows of one stream never overlap.
//
// A window that came over the wire has its rows in order of their ShortIDs, by which alone rows
// name their workloads. It has no Gaps, as those are in its batch. The shares of its Handovers have
// Epoch, N, Active and Idle only. A handover on a guest has only the share that closed its window.
// The Name of a handover is "" if it equals the name of the workload.
type Window struct {
	Boot string
	Extent
	Start, End  int64 // ns of CLOCK_BOOTTIME
	Offset      int64 // wall minus boottime at End, ns
	StartReason StartReason
	// Gaps are the times before the window for which data is missing or incomplete.
	Gaps []Gap
	CPUs int // online at End
	// Total is the use of the machine as a whole, if it is known: disk over leaf devices, network
	// over the interfaces of the host's namespace without lo.
	Total   Usage
	Rows    []Row
	Balance Balance
	// Handovers hold the energy that this machine gave to its virtual machines, or received from
	// its host, in the window.
	Handovers []Handover
	// Volumes are the figures of persistent volumes that were measured in the window, one for each pod and volume.
	Volumes []VolumeUse
}

// SortRows puts the rows in order of their ShortIDs. Rows of one workload keep
// their order.
func (w *Window) SortRows() { slices.SortStableFunc(w.Rows, compareRows) }

func compareRows(a, b Row) int { return cmp.Compare(a.ShortID, b.ShortID) }

// A Handover is the energy that a host gave to one virtual machine, as one of the two booked it. At
// a share of the same epoch and number, both have booked equal amounts.
type Handover struct {
	Guest string // UUID of the virtual machine
	// Workload is the virtual machine on its host; "" on the guest.
	Workload workload.ID
	Name     string // of the domain, on its host
	// Opened is the share up to which energy was booked before the window; its Epoch is "" if there
	// was no such share.
	Opened power.Share
	// Shares are the shares up to which energy was booked in the window, in rising order: on the
	// host one for each tick, on the guest those that it read. The last one closed the window. Of
	// more than MaxShares some are kept, among them the last one. On the guest the amounts are
	// those that it booked itself: the amounts that the host gave, unless a model stood in and the
	// difference is not worked off.
	Shares []power.Share
	// Booked is the energy that was booked in the window, in uJ: the growth from Opened to the last
	// share, within an epoch, and the energy that a model stood in for after it.
	Booked int64
}

// Length returns the window's length.
func (w *Window) Length() time.Duration { return time.Duration(w.End - w.Start) }

// A Balance shows that the parts sum to the whole, over a tick or a window:
// Whole + Skew = Workloads + System + Idle, in integers, for each resource that
// has a whole: CPU in ns, memory in byte-seconds, disk in bytes and requests,
// energy in uJ.
type Balance struct {
	Whole     Shares `json:"whole"`     // what there was to use; of disk, what was done
	Workloads Shares `json:"workloads"` // booked to workloads
	System    Shares `json:"system"`    // used, but by no workload
	Idle      Shares `json:"idle"`      // not used
	// Skew is what the parts showed above the whole because the kernel cannot
	// be read at one instant; it is carried against later idle and system, so
	// it is negative when it is worked off.
	Skew Shares `json:"skew"`
	// Violations counts broken identities: always a defect.
	Violations int64 `json:"violations"`
	// Lost counts births and deaths that the source knows it did not see.
	Lost int64 `json:"lost"`
}

// Add adds c to b.
func (b *Balance) Add(c *Balance) {
	for i := range b.Whole {
		b.Whole[i] += c.Whole[i]
		b.Workloads[i] += c.Workloads[i]
		b.System[i] += c.System[i]
		b.Idle[i] += c.Idle[i]
		b.Skew[i] += c.Skew[i]
	}
	b.Violations += c.Violations
	b.Lost += c.Lost
}

// IsBalanced reports whether the parts of r sum to the whole.
func (b *Balance) IsBalanced(r Resource) bool {
	i := slices.Index(Wholes[:], r)
	return b.Whole[i]+b.Skew[i] == b.Workloads[i]+b.System[i]+b.Idle[i]
}

// Wholes are the resources whose parts sum to a whole.
var Wholes = [...]Resource{CPU, Memory, DiskRead, DiskWritten, DiskReads, DiskWrites, EnergyPackage, EnergyDRAM, EnergyGPU, EnergyRest}

// Shares is an amount of each of the Wholes, in their order.
type Shares [len(Wholes)]int64

// Get returns the share of r, which has to be one of the Wholes.
func (s *Shares) Get(r Resource) int64 { return s[slices.Index(Wholes[:], r)] }

// MarshalJSON writes the shares by resource name, as decimals of base units.
func (s Shares) MarshalJSON() ([]byte, error) {
	named := make(map[string]json.Number, len(s))
	for i, r := range Wholes {
		named[r.String()] = json.Number(r.Detail().Unit.Decimal(s[i]))
	}
	return json.Marshal(named)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (s *Shares) UnmarshalJSON(b []byte) error {
	var named map[string]json.Number
	if err := json.Unmarshal(b, &named); err != nil {
		return err
	}
	for i, r := range Wholes {
		v, err := r.Detail().Unit.Parse(named[r.String()].String())
		if err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		s[i] = v
	}
	return nil
}
