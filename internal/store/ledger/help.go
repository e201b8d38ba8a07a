package ledger

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// How a scan is divided: into about scanPieces, of which others take some where
// there may be helpRows rows, which take some ten milliseconds.
const (
	scanPieces = 32
	helpRows   = 20_000
)

// helping is how many scanners may help others at a time: one for each core
// beside the first, but not more than three.
func helping() int { return min(runtime.GOMAXPROCS(0), 4) - 1 }

// A scan reads some stretches by one scanner, or by several, each of which takes
// the next piece when it is done with one.
type scan struct {
	*selection
	pieces []stretch
	next   atomic.Int64
}

// scan adds the rows of stretches. Where they are many, scanners with connections
// of their own help.
func (s *selection) scan(stretches []stretch, gs groups) error {
	all := &scan{selection: s, pieces: pieces(stretches, scanPieces)}
	first := &scanner{selection: s, v: s.v, groups: gs}
	var workloads int64
	if err := s.v.tx.QueryRowContext(s.v.ctx, "SELECT coalesce(max(id), 0) FROM workload").Scan(&workloads); err != nil {
		return err
	}
	if rowsOf(stretches)*workloads < helpRows {
		return all.work(first)
	}
	// They begin at once, as they have to see the same moment. Who has no
	// connection yet when the pieces are gone is needed no more.
	joining, gone := context.WithCancel(s.v.ctx)
	defer gone()
	var helpers errgroup.Group
	found := make([]groups, helping())
	for i := range found {
		found[i] = groups{}
		helpers.Go(func() error { return all.help(joining, found[i]) })
	}
	err := all.work(first)
	gone()
	if err = cmp.Or(err, helpers.Wait()); err != nil {
		return err
	}
	for _, others := range found {
		gs.merge(others)
	}
	return nil
}

// work has a scanner read pieces until there are no more.
func (s *scan) work(c *scanner) error {
	last := int64(len(s.pieces)) - 1
	for i := s.next.Add(1) - 1; i <= last; i = s.next.Add(1) - 1 {
		if err := c.scan(s.pieces[i]); err != nil {
			s.next.Store(last + 1) // what others would find is of no use
			return err
		}
	}
	return nil
}

// help takes pieces as well, if it may and if it sees the same moment of the
// ledger: each transaction that writes has a revision, so views of one revision
// are alike.
func (s *scan) help(joining context.Context, gs groups) (err error) {
	select {
	case s.l.helpers <- struct{}{}:
		defer func() { <-s.l.helpers }()
	default:
		return nil
	}
	conn, err := s.l.reader.Conn(joining)
	if err != nil {
		return nil // those who have one do it all
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	tx, err := conn.BeginTx(s.v.ctx, &s.l.d.view)
	if err != nil {
		return err
	}
	return s.l.viewIn(s.v.ctx, tx, func(v *view) error {
		if v.rev != s.v.rev {
			return nil
		}
		return s.work(&scanner{selection: s.selection, v: v, groups: gs})
	})
}

// pieces cuts stretches into about n parts, of whole rows.
func pieces(stretches []stretch, n int64) (out []stretch) {
	step := (rowsOf(stretches) + n - 1) / n
	for _, p := range stretches {
		for from, span := p.from, step*p.level.width(); from < p.to; from += span {
			out = append(out, stretch{p.level, from, min(from+span, p.to)})
		}
	}
	return out
}

// rowsOf is how many rows a workload may have in stretches.
func rowsOf(stretches []stretch) (n int64) {
	for _, p := range stretches {
		n += (p.to - p.from) / p.level.width()
	}
	return n
}
