// Package batch holds the types of the transfer from an agent to a server: the data (Batch, Name),
// its order (Stream, Mark), and the server's answer (Reply).
//
// An agent sends batches in streams. A stream has a random id and consists of batches numbered from
// 1. Each batch names the hash of the previous one. A batch never changes after it was first
// offered, so that a server can tell a repetition from a forgery, and takes each batch exactly
// once. Windows are additive and do not refer to earlier ones, so that the order between streams
// does not matter.
//
// An [Entry] is a batch as a ledger books it: cut at minute edges.
package batch

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
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

// A Batch is the unit in which an agent sends windows.
type Batch struct {
	Stream   Stream
	Number   uint64 // from 1
	Previous Hash   // of the previous batch in this stream; zero in the first
	Names    []Name
	// Windows are in order of time and never overlap within a stream. Their gaps are in Gaps, not
	// in the windows.
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
	// Started is the start of its life, or zero if the agent did not see it.
	Started time.Time
	Ended   time.Time // zero while it lives, or if the agent did not see its end
	// Job, User, Project and Labels come from the maker of the workload, for example mete run.
	Job     string
	User    string
	Project string
	Labels  map[string]string
	Exit    *int // the job's exit code, if it ended and has one
}

// IsShortID reports whether the name is only the first digits of the id of a container: its agent knows no
// other, or not yet.
func (n *Name) IsShortID() bool {
	return n.Kind == workload.Container && workload.IsContainerID(n.Key) && n.Name == n.Key[:12]
}

// ReservedSuffix ends the names of workloads that only have what a container or pod reserves.
const ReservedSuffix = " (reserved)"

// Reserves reports whether the workload only has what a container of a pod reserves, or the pod beyond its containers: its key is the
// UID of the pod, a slash, and the name of the container, and it has no path. No agent sends such a name; servers do.
func (n *Name) Reserves() bool {
	return (n.Kind == workload.Pod || n.Kind == workload.Container) && n.Path == "" && strings.Contains(n.Key, "/")
}

// LabelJob of a pod or a container names its job; that of a pod is within its namespace.
const LabelJob = "mete.dev/job"

// Labels of a container with a meaning of their own: they name its pod and, also without a pod, what it is within that
// or within its project of Compose.
const (
	LabelNamespace = "io.kubernetes.pod.namespace"
	LabelPod       = "io.kubernetes.pod.name"
	LabelContainer = "io.kubernetes.container.name"
)

// LabelPodUID is the label of pods and their containers, in names that the ledger returns, that has the UID of the pod.
const LabelPodUID = "io.kubernetes.pod.uid"

// CheckJobLabel refuses a label by which a job would claim to be something else, such as a pod. The
// error wraps fault.ErrInvalid.
func CheckJobLabel(key string) error {
	switch key = strings.ToLower(key); {
	case strings.HasPrefix(key, "io.kubernetes."), slices.Contains([]string{"namespace", "pod", "container"}, key):
		return fault.WithHint(fmt.Errorf("label %.60q names a container's place in Kubernetes, and is not for jobs: %w", key, fault.ErrInvalid), "use another key")
	}
	return nil
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
	// Earlier are the boots before this one of which the agent held windows when it started, in
	// their order. Older agents state none.
	Earlier []BootEnd
}

// A BootEnd is the end of the last window of a boot.
type BootEnd struct {
	Boot   string
	End    int64 // ns of CLOCK_BOOTTIME
	Offset int64 // wall time minus CLOCK_BOOTTIME at the end, ns
}

// A BootPlace is the wall time at which windows of a boot are booked: their boottime plus Offset.
type BootPlace struct {
	Boot   string
	Offset int64 // ns
	// New reports that the boot is not the sender's, and was not known to be booked anywhere.
	New bool
}
