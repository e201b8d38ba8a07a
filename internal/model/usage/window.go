package usage

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/workload"
)

// A Row is what one workload used in a window.
type Row struct {
	Workload workload.Workload
	Parent   workload.ID
	Life     workload.Life
	Usage    Usage
	// Total is, for each counter and integral in Usage, the cumulative amount
	// that was booked to this workload since its life began, this window
	// included. It only grows, also over restarts of the meter.
	Total [Limit]int64
	Ended bool // the workload is gone
}

// A Window is what every workload of a machine used between two instants of
// CLOCK_BOOTTIME. Windows of one stream never overlap.
type Window struct {
	Boot        string
	Start, End  int64 // ns of CLOCK_BOOTTIME
	Offset      int64 // wall minus boottime at End, ns
	StartReason StartReason
	// Gaps are what this window's opening leaves unknown.
	Gaps []Gap
	CPUs int // online at End
	// Total is what the machine as a whole did: disk over leaf devices, network
	// over the interfaces of the host's namespace without lo.
	Total   Usage
	Rows    []Row
	Balance Balance
	// Handovers are the energy that this machine gave to its virtual machines, or
	// got from its host, in the window.
	Handovers []Handover
}

// A Handover is the energy that a host gave to one virtual machine, as one of the
// two booked it. What both booked at the share of the same epoch and number is
// equal.
type Handover struct {
	Guest string // UUID of the virtual machine
	// Workload is the virtual machine on its host; "" where this is the guest.
	Workload workload.ID
	Name     string // of the domain, on its host
	// Opened is the share that was booked up to before; its Epoch is "" where
	// there was none.
	Opened power.Share
	// Shares are those that were booked up to in the window, in rising order: on the
	// host one for each tick, on the guest those that it read. The last one closed it.
	// Of more than MaxShares some are kept, the last one among them. On the guest the amounts are what
	// it booked itself: those that the host gave, unless a model stood in and that is
	// not worked off.
	Shares []power.Share
	// Booked is the energy that was booked in the window, in uJ: what the last one
	// shows more than Opened, within an epoch, and what a model stood in for after it.
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
