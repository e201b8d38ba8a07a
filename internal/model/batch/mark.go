package batch

import "mete.dev/mete/internal/model/workload"

// A Mark is how far a server has taken a stream.
type Mark struct {
	Next uint64 // the number that it wants; 1 for a stream that it does not know
	Last Hash   // of the batch before Next; zero where that is the first
}

// Verdict is what becomes of an offered batch.
type Verdict uint8

const (
	// Accepted: it is in the ledger, durably.
	Accepted Verdict = iota + 1
	// Duplicate: it was taken before; nothing changed.
	Duplicate
	// OutOfOrder: batches before it are missing. The reply says which number is
	// wanted.
	OutOfOrder
	// Conflict: another content stands under this number, or the one before is
	// another. Nothing changed; the offered bytes were kept aside for a person to
	// see. The agent abandons the stream and goes on in a new one.
	Conflict
	// Clone: this identity is in use by another live machine. The agent enrolls
	// anew.
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
	Next    uint64  `json:"next,string"` // the number that the server wants now
	// Names are workloads whose names the server lacks: the agent sends them
	// with its next batch.
	Names []workload.ShortID `json:"names,omitempty"`
}

// Judge says what becomes of a batch that is offered where the stream stands at
// m. known is the hash of the batch that was taken under the same number, where
// that is still remembered; else nil.
func (m Mark) Judge(number uint64, previous, hash Hash, known *Hash) Verdict {
	switch {
	case number > m.Next:
		return OutOfOrder
	case number < m.Next && known != nil && *known != hash:
		return Conflict
	case number < m.Next:
		return Duplicate
	case previous != m.Last:
		return Conflict
	}
	return Accepted
}
