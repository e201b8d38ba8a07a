// Package replica reads from a ledger the row states that are due to an upstream server, and books those of downstream
// servers. Package replicate transports them.
package replica

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
)

// An Exchange sends row states to an upstream server, and takes those of downstream servers.
type Exchange struct{ db *db.DB }

func New(database *db.DB) *Exchange { return &Exchange{database} }

// A recordKind is a kind of record that is replicated. Records are sent in the order of revisions,
// and within a revision in the order of kinds: an hour follows its minutes, so that it makes up for
// minutes that are dropped meanwhile.
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
	kindNesting // a and b are minute and the key of node and host
	kindConnections
	kindEnd // after everything of a revision
)

// A cursor is a position in that order. a and b are minute and key of a row, or the id of another
// record and 0.
type cursor struct {
	rev  int64
	kind recordKind
	a, b int64
}

func (c cursor) compare(o cursor) int {
	return cmp.Or(cmp.Compare(c.rev, o.rev), cmp.Compare(c.kind, o.kind), cmp.Compare(c.a, o.a), cmp.Compare(c.b, o.b))
}

// formatPosition encodes a cursor as the upstream server stores it, with everything that must still
// hold for it to be valid.
func formatPosition(o replica.Offer, epoch string, c cursor) string {
	return fmt.Sprintf("%s.%d.%d.%d.%d.%d.%t", epoch, c.rev, c.kind, c.a, c.b, o.Finest, o.Masked)
}

// parsePosition decodes what formatPosition encoded for the same offer; ok is false for anything
// else.
func parsePosition(o replica.Offer, text string) (epoch string, c cursor, ok bool) {
	f := strings.Split(text, ".")
	if len(f) != 7 {
		return "", c, false
	}
	var n [4]int64
	for i := range n {
		n[i], _ = strconv.ParseInt(f[1+i], 10, 64) // another text than that of the number is not ok below
	}
	c = cursor{n[0], recordKind(n[1]), n[2], n[3]}
	return f[0], c, formatPosition(o, f[0], c) == text
}

// resume returns the cursor to continue from for an upstream server: the beginning if its position
// is not of this ledger as it is. That costs time but is harmless, as states replace states.
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
