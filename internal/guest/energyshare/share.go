// Package energyshare is the text format of the energy that a host gives a virtual machine, and of the
// acknowledgments: docs/formats/share.md describes it.
//
// Each message is one line of JSON. Integers that can exceed 2^53, above which some JSON readers
// lose digits, are strings of decimal digits.
package energyshare

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"

	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/power"
)

const (
	// Version is the version of the messages. Readers refuse higher ones.
	Version = 1
	// Port is the AF_VSOCK port of the host. To listen at a port below 1024 a process needs
	// CAP_NET_BIND_SERVICE: a guest knows thereby that no ordinary user of its host answers.
	Port = 979
	// OpenPort is a port at which any user of the host can listen. A host also serves guests there
	// that connect to no other port; no guest takes shares from there.
	OpenPort = 9799
	// MaxLine is the maximum length of a message in bytes, including the line break.
	MaxLine = 4096
	// MaxEnergy is the maximum energy in a message, in uJ.
	MaxEnergy = 1 << 62
)

// Files in the folder of a virtual machine. The zone is laid out as by Scaphandre and powercap.
const (
	Zone       = "intel-rapl:0"
	ZoneEnergy = Zone + "/energy_uj"           // active and idle, uJ
	ZoneName   = Zone + "/name"                // name of the powercap zone
	ZoneRange  = Zone + "/max_energy_range_uj" // where the counter wraps, uJ
	File       = "mete.json"                   // a Message
)

const (
	maxNumber = 1<<53 - 1 // that every JSON reader represents exactly
	maxName   = 255       // bytes
	maxEpoch  = 64        // bytes
	maxText   = 200       // displayed bytes of a refusal
)

// A Message is a share with the name of the virtual machine on its host.
type Message struct {
	power.Share
	Name  string // of the domain
	VCPUs int
}

// share is the JSON form of a Message.
type share struct {
	Version  int    `json:"version"`
	UUID     string `json:"uuid"`
	Name     string `json:"name"`
	VCPUs    int64  `json:"vcpus"`
	Epoch    string `json:"epoch"`
	N        int64  `json:"n"`
	At       int64  `json:"at_ns,string"`
	Active   int64  `json:"active_uj,string"`
	Idle     int64  `json:"idle_uj,string"`
	Error    int64  `json:"error_uj,string"`
	Modelled int64  `json:"modelled_uj,string"`
}

// refusal is sent instead of a share.
type refusal struct {
	Version int    `json:"version"`
	Error   string `json:"error"`
}

// Append appends a message and a line break to b. It truncates a long name and replaces characters
// that are not printable.
func Append(b []byte, m *Message) []byte {
	return appendLine(b, share{Version, m.Guest, Printable(m.Name, maxName), int64(m.VCPUs), m.Epoch, m.N, m.At, m.Active, m.Idle, m.Error, m.Modelled})
}

// AppendRefusal appends a refusal with its reason.
func AppendRefusal(b []byte, why string) []byte {
	return appendLine(b, refusal{Version, Printable(why, maxText)})
}

// Decode decodes a message. The error wraps fault.ErrInvalid if b is malformed,
// fault.ErrUnsupported if it has a later version, and fault.ErrUnavailable with the peer's reason
// if it is a refusal.
func Decode(b []byte) (Message, error) {
	if len(b) > MaxLine {
		return Message{}, fmt.Errorf("share: longer than %d bytes: %w", MaxLine, fault.ErrInvalid)
	}
	var v struct {
		share
		Version *int   `json:"version"` // nil if missing
		Why     string `json:"error"`   // of a refusal
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return Message{}, fmt.Errorf("share: %v: %w", err, fault.ErrInvalid)
	}
	s := &v.share
	switch {
	case v.Version == nil || *v.Version < 1:
		return Message{}, fmt.Errorf("share: missing version: %w", fault.ErrInvalid)
	case *v.Version > Version:
		return Message{}, fmt.Errorf("share: version %d, supported are versions up to %d: %w", *v.Version, Version, fault.ErrUnsupported)
	case v.Why != "":
		return Message{}, fmt.Errorf("refused by the host: %s: %w", Printable(v.Why, maxText), fault.ErrUnavailable)
	}
	if what := s.problem(); what != "" {
		return Message{}, fmt.Errorf("share: %s: %w", what, fault.ErrInvalid)
	}
	return Message{Share: power.Share{Guest: s.UUID, Epoch: s.Epoch, N: s.N, At: s.At, Active: s.Active, Idle: s.Idle, Error: s.Error, Modelled: s.Modelled},
		Name: s.Name, VCPUs: int(s.VCPUs)}, nil
}

// problem returns what is invalid in s, or "".
func (s *share) problem() string {
	switch {
	case s.UUID != "" && !IsUUID(s.UUID):
		return "uuid: not 36 characters in lower case"
	case s.Name != Printable(s.Name, maxName):
		return "name: too long or not printable"
	case s.VCPUs < 0 || s.VCPUs > math.MaxInt32:
		return "vcpus: out of range"
	case !isEpoch(s.Epoch):
		return "epoch: not 1 to 64 letters, digits and dashes"
	case s.N < 0 || s.N > maxNumber:
		return "n: out of range"
	case s.At < 0:
		return "at_ns: out of range"
	case s.Active < 0 || s.Idle < 0 || s.Active > MaxEnergy || s.Idle > MaxEnergy-s.Active:
		return "active_uj, idle_uj: out of range"
	case s.Error < 0 || s.Error > MaxEnergy:
		return "error_uj: out of range"
	case s.Modelled < 0 || s.Modelled > s.Active+s.Idle:
		return "modelled_uj: out of range"
	}
	return ""
}

// An Ack is what a virtual machine booked: its energy from its host since the epoch began, up to
// share N.
type Ack struct {
	Epoch  string
	N      int64
	Energy int64 // uJ
}

type ack struct {
	Epoch  string `json:"epoch"`
	N      int64  `json:"n"`
	Energy int64  `json:"energy_uj,string"`
}

// AppendAck appends an acknowledgment and a line break to b.
func AppendAck(b []byte, a Ack) []byte { return appendLine(b, ack(a)) }

// DecodeAck decodes an acknowledgment. The error wraps fault.ErrInvalid.
func DecodeAck(b []byte) (Ack, error) {
	if len(b) > MaxLine {
		return Ack{}, fmt.Errorf("ack: longer than %d bytes: %w", MaxLine, fault.ErrInvalid)
	}
	var a ack
	if err := json.Unmarshal(b, &a); err != nil {
		return Ack{}, fmt.Errorf("ack: %v: %w", err, fault.ErrInvalid)
	}
	if !isEpoch(a.Epoch) || a.N < 0 || a.N > maxNumber || a.Energy < 0 || a.Energy > MaxEnergy {
		return Ack{}, fmt.Errorf("ack: out of range: %w", fault.ErrInvalid)
	}
	return Ack(a), nil
}

// appendLine appends v as JSON, and a line break.
func appendLine(b []byte, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic("share: " + err.Error()) // only integers and texts
	}
	return append(append(b, text...), '\n')
}

// IsUUID reports whether s is a UUID in the form of shares: lower case, with dashes.
func IsUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f':
		default:
			return false
		}
	}
	return true
}

// isEpoch reports whether s is a valid epoch id.
func isEpoch(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', c == '-', c == '_':
		default:
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxEpoch
}

// Printable returns s, truncated to most bytes, with question marks for characters that are not
// printable.
func Printable(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
	for len(s) > most {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return s
}
