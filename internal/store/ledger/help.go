package ledger

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"mete.dev/mete/internal/model/usage"
)

// helpRows is from how many rows on others help to read them: it takes some ten
// milliseconds.
const helpRows = 20_000

// helping is how many may help others at a time: one for each core beside the
// first, but not more than three.
func helping() int { return min(runtime.GOMAXPROCS(0), 4) - 1 }

// A gathering finds the slabs of some stretches: those on the shelf, and others by
// reading them, by one reader or by several, each of which takes the next piece
// when it is done with one.
type gathering struct {
	l       *Ledger
	v       *view
	kind    *slabKind
	keys    []int64 // the only ones; nil is all
	missing []piece
	next    atomic.Int64
}

// A piece is a slab that is to be read.
type piece struct {
	stretch
	want usage.Set
}

// gather gives the slabs of stretches to use, in any order. single is that none is
// of two days. Where keys is not nil they are of those keys alone.
func (v *view) gather(l *Ledger, k *slabKind, want usage.Set, stretches []stretch, single bool, keys []int64, use func(*slab) error) error {
	g := &gathering{l: l, v: v, kind: k, keys: keys}
	if keys != nil {
		for _, p := range few(stretches, single) {
			g.missing = append(g.missing, piece{p, want})
		}
		return g.work(use)
	}
	var units int64
	for _, p := range l.shelf.pieces(stretches, single, time.Now()) {
		b, has := l.shelf.get(k, p, want, v.rev)
		if b == nil {
			g.missing = append(g.missing, piece{p, want | has})
			units += p.units()
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
	if err := v.tx.QueryRowContext(v.ctx, "SELECT coalesce(max(id), 0) FROM "+k.shape.key).Scan(&most); err != nil {
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

func (g *gathering) workIn(v *view, use func(*slab) error) error {
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
	joining, gone := context.WithCancel(g.v.ctx)
	defer gone()
	var helpers errgroup.Group
	found := make(chan *slab)
	for range helping() {
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
	case g.l.helpers <- struct{}{}:
		defer func() { <-g.l.helpers }()
	default:
		return nil
	}
	conn, err := g.l.reader.Conn(joining)
	if err != nil {
		return nil // those who have one do it all
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	tx, err := conn.BeginTx(g.v.ctx, &g.l.d.view)
	if err != nil {
		return err
	}
	return g.l.viewIn(g.v.ctx, tx, func(v *view) error {
		if v.rev != g.v.rev {
			return nil
		}
		return g.workIn(v, func(b *slab) error { found <- b; return nil })
	})
}

// load makes the slab of a piece: of slabs of its parts, where most of them are on
// the shelf.
func (g *gathering) load(v *view, p piece) (*slab, error) {
	if g.keys != nil {
		return g.l.read(v, g.kind, p.stretch, p.want, g.keys)
	}
	parts := p.parts()
	slabs := make([]*slab, len(parts))
	have := 0
	for i, part := range parts {
		if len(parts) == 1 {
			break
		}
		if slabs[i], _ = g.l.shelf.get(g.kind, part, p.want, v.rev); slabs[i] != nil {
			have++
		}
	}
	if 2*have <= len(parts) {
		b, err := g.l.read(v, g.kind, p.stretch, p.want, nil)
		if err == nil {
			g.l.shelf.put(b, v.rev)
		}
		return b, err
	}
	for i, part := range parts {
		if slabs[i] != nil {
			continue
		}
		var err error
		if slabs[i], err = g.l.read(v, g.kind, part, p.want, nil); err != nil {
			return nil, err
		}
	}
	b := joined(p.stretch, slabs)
	g.l.shelf.put(b, v.rev)
	g.l.shelf.free(g.kind, parts)
	return b, nil
}

// fewUnits is how many rows of a key are looked up by one statement.
const fewUnits = 2 * hourMinutes

// few cuts stretches for a question about some keys.
func few(stretches []stretch, single bool) (out []stretch) {
	for _, p := range stretches {
		for at := p.from; at < p.to; at = out[len(out)-1].to {
			to := min(p.to, at+fewUnits*p.level.width())
			switch {
			case p.level == days && single:
				to = at + dayMinutes
			case p.level != days:
				to = min(to, at-at%dayMinutes+dayMinutes)
			}
			out = append(out, stretch{p.level, at, to})
		}
	}
	return out
}
