package attribute

import (
	"math"
	"testing"
	"unsafe"

	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// TestAccountSize checks that an account fits into 2048 bytes, one of the sizes in which Go allocates, 8 of which it
// needs itself. There is one for each group: the next larger size, 2304, takes 1.6 MiB more of an agent with 5000 groups.
// Fields that few workloads have belong behind a pointer that is nil for the others, as account.apart and total.rare.
func TestAccountSize(t *testing.T) {
	t.Parallel()
	if size, most := unsafe.Sizeof(account{}), uintptr(2048-8); size > most {
		t.Errorf("an account has %d bytes, want at most %d", size, most)
	}
}

// TestCounterSlots checks that each counter that is booked has a slot of its own, and that only one slot is unused.
func TestCounterSlots(t *testing.T) {
	t.Parallel()
	if got := bookedSet.Len() + 1; got != counterSlots {
		t.Errorf("%d slots for %d counters", counterSlots, bookedSet.Len())
	}
	for r := range usage.Resource(usage.Limit) {
		if slot := int(counterSlot[r]); slot < bookedSet.Len() != bookedSet.Has(r) || slot >= counterSlots {
			t.Errorf("slot %d of resource %d", slot, r)
		}
	}
}

// TestRareTotals checks sums of more than 64 bits and of traffic by class, and that a copy does not change with them.
func TestRareTotals(t *testing.T) {
	t.Parallel()
	var u usage.Usage
	u.Put(usage.CPU, 1, usage.Measured)
	u.Put(usage.Memory, math.MaxInt64, usage.Measured)
	u.Put(usage.NetworkTxZone, math.MaxInt64, usage.Measured)
	var have total
	var sum, few unit.Sum
	for n := range 5 {
		before, was := have.clone(), sum
		have.add(&u)
		sum, few = sum.Add(math.MaxInt64), few.Add(1)
		if have.sum(usage.CPU) != few || have.sum(usage.Memory) != sum || have.sum(usage.NetworkTxZone) != sum {
			t.Errorf("after %d: %v, %v and %v, want %v, %v and %v", n+1, have.sum(usage.CPU), have.sum(usage.Memory), have.sum(usage.NetworkTxZone), few, sum, sum)
		}
		if before.sum(usage.Memory) != was || before.sum(usage.NetworkTxZone) != was {
			t.Errorf("the copy of %v changed to %v and %v", was, before.sum(usage.Memory), before.sum(usage.NetworkTxZone))
		}
	}
	have.set(usage.Memory, few)
	if have.sum(usage.Memory) != few || have.sum(usage.NetworkRxZone) != (unit.Sum{}) {
		t.Errorf("%v and %v, want %v and 0", have.sum(usage.Memory), have.sum(usage.NetworkRxZone), few)
	}
}
