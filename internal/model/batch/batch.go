// Package batch holds the nouns of the way from an agent to a server: what is
// sent (Batch, Name), in which order (Stream, Mark), and what
// a server answers (Reply).
//
// An agent sends batches in streams. A stream is an id made at random, and a
// row of batches numbered from 1, each of which names the hash of the one
// before. Once offered a batch never changes, so that a server can tell a
// repeat from a forgery, and takes each exactly once. Windows add up and carry
// no reference to what came before them, so that the order between streams is
// nothing.
//
// An [Entry] is a batch as a ledger books it: cut at minute edges.
package batch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

// A Stream is the id of a stream: 16 random bytes.
type Stream [16]byte

// String writes the id in hexadecimal digits.
func (s Stream) String() string { return hex.EncodeToString(s[:]) }

// MarshalText implements encoding.TextMarshaler.
func (s Stream) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Stream) UnmarshalText(b []byte) (err error) {
	*s, err = ParseStream(string(b))
	return err
}

// ParseStream reads what String wrote.
func ParseStream(s string) (id Stream, err error) {
	if len(s) != 2*len(id) {
		return id, fmt.Errorf("stream %q is not of %d hexadecimal digits: %w", s, 2*len(id), fault.ErrInvalid)
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return id, fmt.Errorf("stream %q: %w: %w", s, err, fault.ErrInvalid)
	}
	return id, nil
}

// A Hash is the SHA-256 of a batch's bytes as they are sent.
type Hash [sha256.Size]byte

// String writes the hash in hexadecimal digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText implements encoding.TextMarshaler.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hash) UnmarshalText(b []byte) error {
	if len(b) != 2*len(h) {
		return fmt.Errorf("hash %q is not of %d hexadecimal digits: %w", b, 2*len(h), fault.ErrInvalid)
	}
	if _, err := hex.Decode(h[:], b); err != nil {
		return fmt.Errorf("hash %q: %w: %w", b, err, fault.ErrInvalid)
	}
	return nil
}

// HashOf is the hash of a batch that is sent as these bytes.
func HashOf(sent []byte) Hash { return sha256.Sum256(sent) }

// A Batch is what an agent sends at once.
type Batch struct {
	Stream   Stream
	Number   uint64 // from 1
	Previous Hash   // of the batch before in this stream; zero in the first
	Names    []Name
	// Windows are in order of time and never overlap within a stream. The Gaps of
	// all of them are those of the batch.
	Windows []usage.Window
	Gaps    []usage.Gap
}

// A Name says what a workload is called and what it belongs to. It is sent when
// a workload is first seen, whenever it changes, and again now and then. It is
// about display and grouping, never about amounts: rows of a workload without a
// name are kept and get it later.
type Name struct {
	ID     workload.ID // all 16 bytes
	Kind   workload.Kind
	Key    string // see workload.Name
	Name   string
	Path   string
	Parent workload.ID // "" for those at the top
	// Started is when its life began, where that was seen; else zero.
	Started time.Time
	Ended   time.Time // zero while it lives, or where nobody saw its end
	// Job, User, Project and Labels are what its maker said, as mete run does.
	Job     string
	User    string
	Project string
	Labels  map[string]string
	Exit    *int // the job's exit code, where it ended and has one
}

// MaxLabels is how many labels a name has at most: more are refused where they
// are said.
const MaxLabels = 32

// Loss is an agent's word that it cannot send batches From to To (inclusive) of
// a stream, ever. The server books the Gap and goes on after To.
type Loss struct {
	Stream Stream    `json:"stream"`
	From   uint64    `json:"from,string"`
	To     uint64    `json:"to,string"`
	Hash   Hash      `json:"hash"` // of batch To, which the next one names
	Gap    usage.Gap `json:"gap"`
}

// A Clock is what an agent's clocks show as it sends.
type Clock struct {
	Boot     string // boot id
	Boottime int64  // ns of CLOCK_BOOTTIME
	Wall     int64  // ns since 1970
}
