package read

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// helpRows is from how many rows on others help to read them: it takes some ten
// milliseconds.
const helpRows = 20_000

// A gathering finds the slabs of some stretches: those on the shelf, and others by
// reading them, by one reader or by several, each of which takes the next piece
// when it is done with one.
type gathering struct {
	rd      *Reader
	v       *db.View
	kind    *slabKind
	keys    []int64 // the only ones; nil is all
	missing []piece
	next    atomic.Int64
}

// A piece is a slab that is to be read.
type piece struct {
	schema.Range
	want usage.Set
}

// gather gives the slabs of stretches to use, in any order. single is that none is
// of two days. Where keys is not nil they are of those keys alone.
func (rd *Reader) gather(v *db.View, k *slabKind, want usage.Set, stretches []schema.Range, single bool, keys []int64, use func(*slab) error) error {
	g := &gathering{rd: rd, v: v, kind: k, keys: keys}
	if keys != nil {
		for _, p := range few(stretches, single) {
			g.missing = append(g.missing, piece{p, want})
		}
		return g.work(use)
	}
	var units int64
	for _, p := range rd.cache.shelf.pieces(stretches, single, time.Now()) {
		b, has := rd.cache.shelf.get(k, p, want, v.Rev)
		if b == nil {
			g.missing = append(g.missing, piece{p, want | has})
			units += p.Len()
			continue
		}
		if err := use(b); err != nil {
			return err
		}
	}
	if units == 0 {
		return nil
	}
	var most int64
	if err := v.SQL.QueryRowContext(v.Ctx, "SELECT coalesce(max(id), 0) FROM "+k.shape.Key).Scan(&most); err != nil {
		return err
	}
	if units*most < helpRows {
		return g.work(use)
	}
	return g.together(use)
}

// work reads pieces until there are no more.
func (g *gathering) work(use func(*slab) error) error {
	return g.workIn(g.v, use)
}

func (g *gathering) workIn(v *db.View, use func(*slab) error) error {
	end := int64(len(g.missing))
	for i := g.next.Add(1) - 1; i < end; i = g.next.Add(1) - 1 {
		b, err := g.load(v, g.missing[i])
		if err == nil {
			err = use(b)
		}
		if err != nil {
			g.next.Store(end) // what others would find is of no use
			return err
		}
	}
	return nil
}

// together is work with others. They begin at once, as they have to see the same
// moment. Who has no connection yet when the pieces are gone is needed no more.
func (g *gathering) together(use func(*slab) error) error {
	joining, gone := context.WithCancel(g.v.Ctx)
	defer gone()
	var helpers errgroup.Group
	found := make(chan *slab)
	for range db.MaxWorkers() {
		helpers.Go(func() error { return g.help(joining, found) })
	}
	over := make(chan error, 1)
	go func() {
		over <- helpers.Wait()
		close(found)
	}()
	err := g.work(func(b *slab) error {
		if err := use(b); err != nil {
			return err
		}
		for {
			select {
			case b := <-found:
				if b == nil { // nobody helps any more
					return nil
				}
				if err := use(b); err != nil {
					return err
				}
			default:
				return nil
			}
		}
	})
	gone()
	for b := range found {
		if err == nil {
			err = use(b)
		}
	}
	if failed := <-over; err == nil {
		err = failed
	}
	return err
}

// help takes pieces as well, if it may and if it sees the same moment of the
// ledger: each transaction that writes has a revision, so views of one revision
// are alike.
func (g *gathering) help(joining context.Context, found chan<- *slab) (err error) {
	select {
	case g.rd.helpers <- struct{}{}:
		defer func() { <-g.rd.helpers }()
	default:
		return nil
	}
	conn, err := g.rd.db.Reader.Conn(joining)
	if err != nil {
		return nil // those who have one do it all
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return g.rd.db.ViewOn(g.v.Ctx, conn, func(v *db.View) error {
		if v.Rev != g.v.Rev {
			return nil
		}
		return g.workIn(v, func(b *slab) error { found <- b; return nil })
	})
}

// load makes the slab of a piece: of slabs of its parts, where most of them are on
// the shelf.
func (g *gathering) load(v *db.View, p piece) (*slab, error) {
	if g.keys != nil {
		return g.rd.read(v, g.kind, p.Range, p.want, g.keys)
	}
	parts := p.Split()
	slabs := make([]*slab, len(parts))
	have := 0
	for i, part := range parts {
		if len(parts) == 1 {
			break
		}
		if slabs[i], _ = g.rd.cache.shelf.get(g.kind, part, p.want, v.Rev); slabs[i] != nil {
			have++
		}
	}
	if 2*have <= len(parts) {
		b, err := g.rd.read(v, g.kind, p.Range, p.want, nil)
		if err == nil {
			g.rd.cache.shelf.put(b, v.Rev)
		}
		return b, err
	}
	for i, part := range parts {
		if slabs[i] != nil {
			continue
		}
		var err error
		if slabs[i], err = g.rd.read(v, g.kind, part, p.want, nil); err != nil {
			return nil, err
		}
	}
	b := joined(p.Range, slabs)
	g.rd.cache.shelf.put(b, v.Rev)
	g.rd.cache.shelf.free(g.kind, parts)
	return b, nil
}

// fewUnits is how many rows of a key are looked up by one statement.
const fewUnits = 2 * schema.HourMinutes

// few cuts stretches for a question about some keys.
func few(stretches []schema.Range, single bool) (out []schema.Range) {
	for _, p := range stretches {
		for at := p.From; at < p.To; at = out[len(out)-1].To {
			to := min(p.To, at+fewUnits*p.Level.Width())
			switch {
			case p.Level == schema.Days && single:
				to = at + schema.DayMinutes
			case p.Level != schema.Days:
				to = min(to, at-at%schema.DayMinutes+schema.DayMinutes)
			}
			out = append(out, schema.Range{Level: p.Level, From: at, To: to})
		}
	}
	return out
}
