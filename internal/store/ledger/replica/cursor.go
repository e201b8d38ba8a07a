// Package replica gives row states to a server above, and takes those of servers
// below.
package replica

import (
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
)

// An Exchange gives row states to a server above, and takes those of servers below.
type Exchange struct{ db *db.DB }

func New(database *db.DB) *Exchange { return &Exchange{database} }

// A kind is one of the things of which states are told. They are told in the
// order of their revisions, and those of one revision in the order of kinds:
// an hour comes after its minutes, so that it makes up for those that are
// dropped meanwhile.
type recordKind int64

const (
	kindNode recordKind = iota
	kindWorkload
	kindGap
	kindShift
	kindNodeMinute
	kindMinute
	kindNodeHour
	kindHour
	kindNodeDay
	kindDay
	kindNesting // a and b are node and minute
	kindEnd     // after everything of a revision
)

// A cursor is a place in that order. a and b are minute and key of a row, or
// the id of something else and 0.
type cursor struct {
	rev  int64
	kind recordKind
	a, b int64
}

func (c cursor) compare(o cursor) int {
	for _, d := range [...][2]int64{{c.rev, o.rev}, {int64(c.kind), int64(o.kind)}, {c.a, o.a}, {c.b, o.b}} {
		if d[0] != d[1] {
			if d[0] < d[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// formatPosition writes a cursor as a server above keeps it, with all that has to be
// as it was for it to mean anything.
func formatPosition(o replica.Offer, epoch string, c cursor) string {
	return fmt.Sprintf("%s.%d.%d.%d.%d.%d.%t", epoch, c.rev, c.kind, c.a, c.b, o.Finest, o.Masked)
}

// parsePosition reads what position wrote for the same offer; false is anything
// else.
func parsePosition(o replica.Offer, text string) (epoch string, c cursor, ok bool) {
	f := strings.Split(text, ".")
	if len(f) != 7 {
		return "", c, false
	}
	var n [4]int64
	for i := range n {
		var err error
		if n[i], err = strconv.ParseInt(f[1+i], 10, 64); err != nil {
			return "", c, false
		}
	}
	c = cursor{n[0], recordKind(n[1]), n[2], n[3]}
	return f[0], c, formatPosition(o, f[0], c) == text
}

// resume is where to go on for a server above: from the beginning where its
// position is none of this ledger as it is now. That costs time and no harm,
// as states take the place of states.
func resume(v *db.View, o replica.Offer, at string, rev int64) (cursor, error) {
	epoch, c, ok := parsePosition(o, at)
	if !ok || c.rev > rev {
		return cursor{}, nil
	}
	now, err := v.EpochOf(c.rev)
	if err != nil || now != epoch {
		return cursor{}, err
	}
	return c, nil
}
