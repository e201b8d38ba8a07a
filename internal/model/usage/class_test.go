package usage_test

import (
	"maps"
	"testing"

	"mete.dev/mete/internal/model/usage"
)

// TestNetworkClasses checks the names of classes, and that each has its own resources of both directions.
func TestNetworkClasses(t *testing.T) {
	want := []string{"unclassified", "node", "box", "internal", "zone", "peering", "internet"}
	var rx, tx usage.Set
	for i, name := range want {
		c := usage.NetworkClass(i)
		if found, ok := usage.FindNetworkClass(name); !ok || found != c || c.String() != name {
			t.Errorf("class %d is %v, and %q is class %d, %t", c, c, name, found, ok)
		}
		if c == usage.Unclassified {
			continue
		}
		if got := []string{c.Rx().String(), c.Tx().String()}; got[0] != "network_rx_"+name || got[1] != "network_tx_"+name {
			t.Errorf("the resources of %s are %v", name, got)
		}
		rx, tx = rx|usage.SetOf(c.Rx()), tx|usage.SetOf(c.Tx())
	}
	if len(want) != int(usage.NetworkClassLimit) {
		t.Errorf("%d classes, want %d", usage.NetworkClassLimit, len(want))
	}
	if c, ok := usage.FindNetworkClass("other"); ok || c != usage.Unclassified {
		t.Errorf("other is class %v", c)
	}
	if got := usage.Directions; got != [2]usage.Direction{{Whole: usage.NetworkRx, Classes: rx}, {Whole: usage.NetworkTx, Classes: tx}} {
		t.Errorf("directions %+v, want classes %b and %b", got, rx, tx)
	}
	if n := len(usage.ClassBytes{}); n != usage.Classified.Len() {
		t.Errorf("there is room for %d classified resources", n)
	}
	if usage.Classified != rx|tx {
		t.Errorf("classified are %b, want %b", usage.Classified, rx|tx)
	}
}

// TestClassBytes checks that bytes by class are given by resource, without those that are 0, until the loop ends.
func TestClassBytes(t *testing.T) {
	var b usage.ClassBytes
	for range b.All() {
		t.Error("the zero value has bytes")
	}
	b.Add(usage.NetworkRxNode, 3)
	b.Add(usage.NetworkTxInternet, 4)
	b.Add(usage.NetworkTxInternet, 5)
	b.Add(usage.NetworkRxZone, 6)
	b.Add(usage.NetworkRxZone, -6)
	got := maps.Collect(b.All())
	if len(got) != 2 || got[usage.NetworkRxNode] != 3 || got[usage.NetworkTxInternet] != 9 {
		t.Errorf("bytes %v", got)
	}
	n := 0
	for range b.All() {
		n++
		break
	}
	if n != 1 {
		t.Errorf("%d resources before the loop ended", n)
	}
}
