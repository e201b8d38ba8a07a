package usage

import "iter"

// A NetworkClass is a class of network traffic by where its other end is, as providers price it. Traffic
// is of one class or of none.
type NetworkClass uint8

// The classes. Their order is that of the resources.
const (
	Unclassified  NetworkClass = iota // it is not known where the other end is
	ClassNode                         // on the same machine
	ClassBox                          // in the same box: an enclosure of machines
	ClassInternal                     // in the same zone
	ClassZone                         // in another zone
	ClassPeering                      // in a network with which traffic is exchanged directly
	ClassInternet                     // anywhere else

	// NetworkClassLimit is one more than the highest class.
	NetworkClassLimit
)

var classNames = [NetworkClassLimit]string{"unclassified", "node", "box", "internal", "zone", "peering", "internet"}

// String returns the name of the class, as resources and settings have it.
func (c NetworkClass) String() string { return classNames[c] }

// FindNetworkClass returns the class of a name, false if there is none.
func FindNetworkClass(name string) (NetworkClass, bool) {
	for c := range NetworkClassLimit {
		if classNames[c] == name {
			return c, true
		}
	}
	return Unclassified, false
}

// Rx returns the resource of the bytes received; c is not Unclassified.
func (c NetworkClass) Rx() Resource { return NetworkRxNode + 2*Resource(c-ClassNode) }

// Tx returns the resource of the bytes sent; c is not Unclassified.
func (c NetworkClass) Tx() Resource { return c.Rx() + 1 }

// A Direction of network traffic has the resource of all of it, and the resources of its parts whose class is known.
type Direction struct {
	Whole   Resource
	Classes Set
}

// Directions are what is received and what is sent.
var Directions = func() [2]Direction {
	rx, tx := Direction{Whole: NetworkRx}, Direction{Whole: NetworkTx}
	for c := ClassNode; c < NetworkClassLimit; c++ {
		rx.Classes |= SetOf(c.Rx())
		tx.Classes |= SetOf(c.Tx())
	}
	return [2]Direction{rx, tx}
}()

// Classified are the resources of network traffic by class.
const Classified Set = 1<<(NetworkTxInternet+1) - 1<<NetworkRxNode

// ClassBytes are numbers of bytes by resource of Classified. The zero value has none.
type ClassBytes [NetworkTxInternet - NetworkRxNode + 1]int64

// Add adds bytes to a resource of Classified.
func (b *ClassBytes) Add(r Resource, bytes int64) { b[r-NetworkRxNode] += bytes }

// All iterates over the resources that have bytes.
func (b *ClassBytes) All() iter.Seq2[Resource, int64] {
	return func(yield func(Resource, int64) bool) {
		for i, v := range b {
			if v != 0 && !yield(NetworkRxNode+Resource(i), v) {
				return
			}
		}
	}
}
