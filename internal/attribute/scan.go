package attribute

import (
	"encoding/binary"
	"math"

	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// A scanner decodes numbers and texts, and returns zeros after an error.
type scanner struct {
	rest []byte
	bad  bool
}

func (s *scanner) byte() byte {
	if s.bad || len(s.rest) == 0 {
		s.bad = true
		return 0
	}
	v := s.rest[0]
	s.rest = s.rest[1:]
	return v
}

func (s *scanner) bool() bool {
	v := s.byte()
	s.bad = s.bad || v > 1
	return v == 1
}

func (s *scanner) uint() uint64 {
	v, n := binary.Uvarint(s.rest)
	return uint64(s.advance(int64(v), n))
}

func (s *scanner) int() int64 {
	v, n := binary.Varint(s.rest)
	return s.advance(v, n)
}

func (s *scanner) advance(v int64, n int) int64 {
	if s.bad || n <= 0 {
		s.bad = true
		return 0
	}
	s.rest = s.rest[n:]
	return v
}

func (s *scanner) string() string {
	n := s.uint()
	if s.bad || n > uint64(len(s.rest)) {
		s.bad = true
		return ""
	}
	v := string(s.rest[:n])
	s.rest = s.rest[n:]
	return v
}

// share reads what appendShare wrote.
func (s *scanner) share() (sh power.Share) {
	if sh.Epoch = s.string(); sh.Epoch != "" {
		sh.Guest = s.string()
		s.amounts(&sh)
	}
	return sh
}

// amounts reads the numbers of a share, none negative or too large to be added.
func (s *scanner) amounts(sh *power.Share) {
	for _, v := range [...]*int64{&sh.N, &sh.At, &sh.Active, &sh.Idle, &sh.Error, &sh.Modelled} {
		*v = s.int()
		s.bad = s.bad || *v < 0 || *v > math.MaxInt64/4
	}
}

// set reads a set of metered resources.
func (s *scanner) set() usage.Set {
	v := usage.Set(s.uint())
	s.bad = s.bad || v&^usage.Metered != 0
	return v & usage.Metered
}

// presence reads what appendPresence wrote.
func (s *scanner) presence() (present usage.Set, q usage.Qualities) {
	present = s.set()
	for i := range present.Words() {
		q[i] = s.uint()
	}
	return present, q
}

// readingSet reads a set of resources that groups show, which excludes energy and those of usage.Apart.
func (s *scanner) readingSet() usage.Set {
	v := s.set()
	s.bad = s.bad || v&(energySet|usage.Apart) != 0
	return v &^ (energySet | usage.Apart)
}

func (s *scanner) level(v int64) int64 {
	if v < 0 || v >= levelLimit {
		s.bad = true
		return 0
	}
	return v
}

func (s *scanner) integral() unit.Integral {
	v, ok := unit.IntegralOf(s.uint())
	s.bad = s.bad || !ok
	return v
}

func (s *scanner) sum() unit.Sum {
	lo := s.uint()
	hi := uint64(0)
	if lo&1 != 0 {
		hi = s.uint()
	}
	return unit.SumOf(hi>>1, hi<<63|lo>>1)
}
