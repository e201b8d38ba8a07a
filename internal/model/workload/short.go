package workload

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"mete.dev/mete/internal/model/fault"
)

// A ShortID is the first 8 bytes of a workload's ID, big endian. Rows name their
// workload by it: within one node two that are alike would need some 2^32 of
// them.
type ShortID uint64

// ShortIDOf is the first 8 bytes of an ID; false where it is none that NewID
// makes.
func ShortIDOf(id ID) (ShortID, bool) {
	raw, ok := id.Bytes()
	return ShortID(binary.BigEndian.Uint64(raw[:])), ok
}

// String writes the 16 hexadecimal digits that stand in JSON.
func (s ShortID) String() string { return fmt.Sprintf("%016x", uint64(s)) }

// MarshalText implements encoding.TextMarshaler.
func (s ShortID) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. The error wraps
// fault.ErrInvalid.
func (s *ShortID) UnmarshalText(b []byte) error {
	var raw [8]byte
	if len(b) != 2*len(raw) {
		return fmt.Errorf("workload %q is not of %d hexadecimal digits: %w", b, 2*len(raw), fault.ErrInvalid)
	}
	if _, err := hex.Decode(raw[:], b); err != nil {
		return fmt.Errorf("workload %q: %w: %w", b, err, fault.ErrInvalid)
	}
	*s = ShortID(binary.BigEndian.Uint64(raw[:]))
	return nil
}
