package batch

import "mete.dev/mete/internal/model/workload"

// A Mark is the position up to which a server has taken a stream.
type Mark struct {
	Next uint64 // number of the batch that it expects next; 1 in an unknown stream
	Last Hash   // of the batch before Next; zero if Next is 1
}

// Verdict is a server's decision on an offered batch.
type Verdict uint8

const (
	// Accepted: it is in the ledger, durably.
	Accepted Verdict = iota + 1
	// Duplicate: it was taken before; nothing changed.
	Duplicate
	// OutOfOrder: batches before it are missing. The reply gives the number that the server
	// expects.
	OutOfOrder
	// Conflict: the server has another content under this number, or another previous batch.
	// Nothing changed; the server kept the offered bytes for a person to see. The agent abandons
	// the stream and continues in a new one.
	Conflict
	// Clone: another live machine uses this identity. The agent enrolls again.
	Clone
)

var verdictNames = [...]string{"", "taken", "known", "behind", "conflict", "clone"}

// String returns the verdict as it stands in replies.
func (v Verdict) String() string { return verdictNames[min(int(v), len(verdictNames)-1)] }

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. A word that it does not
// know gives 0.
func (v *Verdict) UnmarshalText(b []byte) error {
	*v = 0
	for i, n := range verdictNames {
		if n == string(b) {
			*v = Verdict(i)
		}
	}
	return nil
}

// A Reply is a server's answer to an offer.
type Reply struct {
	Verdict Verdict `json:"verdict"`
	Next    uint64  `json:"next,string"` // number of the batch that the server expects next
	// Booked says of a Duplicate that the server has compared it: this content was booked, or all time that
	// its windows measured is. Without it only the number was booked, which an agent whose spool was restored
	// from a backup may have given to other windows. Servers of earlier versions never say it.
	Booked bool `json:"booked,omitempty"`
	// Names are workloads whose names the server lacks: the agent sends them
	// with its next batch.
	Names []workload.ShortID `json:"names,omitempty"`
}

// Judge returns the verdict on a batch that is offered while the stream is at m. known is the hash
// of the batch that was taken under the same number, or nil if the server does not remember it.
func (m Mark) Judge(number uint64, previous, hash Hash, known *Hash) Verdict {
	switch {
	case number > m.Next:
		return OutOfOrder
	case number == m.Next && previous == m.Last:
		return Accepted
	case number == m.Next || known != nil && *known != hash:
		return Conflict
	}
	return Duplicate
}
