package walltime

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/connection"
	"mete.dev/mete/internal/model/fault"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/model/workload"
)

const (
	// MaxAmount is more than any amount in one minute may be: ledgers add many
	// of them in 63 bits.
	MaxAmount = 1 << 52

	minute = int64(time.Minute)
	hour   = int64(time.Hour)
	day    = 24 * hour

	// Windows up to so long are cut at minutes, and at hours; ...
	byMinute, byMinuteTight = 2 * hour, 10 * minute
	byHour                  = 7 * day
	// ... the tight way where a batch would else be more than many pieces. One
	// of more than most is refused.
	tightPieces, maxPieces = 1 << 18, 1 << 20
)

// grains are the distances of edges, from fine to coarse.
var grains = [...]int64{minute, 10 * minute, hour, day}

// Cuts are windows cut at minute edges.
type Cuts struct {
	Windows []CutWindow // in the order in which they were given
	// Minutes and Nodes are the pieces, what falls together added up: one Minute for
	// each workload and minute, by minute and workload, and one NodeMinute for each
	// minute.
	Minutes []batch.Minute
	Nodes   []batch.NodeMinute
	// Connections are those of the rows by quarter and workload.
	Connections []batch.Connections
}

// Cut cuts windows at minute edges, after it adds to the stamps of each window the
// duration that by has for it.
//
// The piece [a, b) of a window gets
//
//	floor(total x (b - start) / length) - floor(total x (a - start) / length)
//
// so pieces sum to the total exactly; but traffic by class gets a few bytes less where it would be more than the traffic as
// a whole. Connections are divided in the same way, at quarters of an hour, see [batch.Connections]. A peak may have been in any piece, so each
// piece gets it. The parts of a node's minute still sum to its whole, since Skew has
// the amounts that the rounding of many rows moves from one piece to the next.
//
// Windows of up to two hours are cut at minutes, up to a week at whole hours, and
// longer ones at whole UTC days, more finely if a minute could not hold a piece. A
// piece is booked in the first minute that it covers. Smaller pieces of a long window
// would add rows and no information, since the agent took no readings within it. If a
// batch would become very many pieces, windows of more than ten minutes are cut at
// hours.
//
// Judge must have accepted the stamps. The error wraps fault.ErrInvalid: an amount is
// negative, or larger than a minute can hold.
func Cut(ws []usage.Window, by []time.Duration) (*Cuts, error) {
	pieces := countPieces(ws, false)
	tight := pieces > tightPieces
	if tight {
		if pieces = countPieces(ws, tight); pieces > maxPieces {
			return nil, fmt.Errorf("windows make %d rows by the minute, more than %d: %w", pieces, maxPieces, fault.ErrInvalid)
		}
	}
	c := cutter{Cuts: Cuts{Windows: findEdges(ws, by, tight)}, windows: make([]window, len(ws)), parts: make([]part, 0, pieces), nodes: map[int64]int{}, talks: map[talk]*connection.Sketch{}}
	for i := range ws {
		if err := c.divide(i); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	if err := c.sumParts(); err != nil {
		return nil, err
	}
	for i := range c.windows {
		if err := c.addNode(&c.windows[i]); err != nil {
			return nil, fmt.Errorf("window %d: %w", i, err)
		}
	}
	c.sumConnections()
	slices.SortFunc(c.Nodes, func(a, b batch.NodeMinute) int { return cmp.Compare(a.Minute, b.Minute) })
	return &c.Cuts, nil
}

// countPieces is about how many minutes of workloads the windows become.
func countPieces(ws []usage.Window, tight bool) (n int64) {
	for i := range ws {
		w := &ws[i]
		n += int64(len(w.Rows)+1) * ((w.End-w.Start)/grainOf(w, tight) + 1)
	}
	return n
}

// grainOf is the distance of the edges at which w is cut.
func grainOf(w *usage.Window, tight bool) int64 {
	length, limit := w.End-w.Start, byMinute
	if tight {
		limit = byMinuteTight
	}
	if length <= limit {
		return minute
	}
	coarsest := len(grains) - 1
	if length <= byHour {
		coarsest--
	}
	// A large machine may use more in an hour than a minute can hold.
	largest := slices.Max(w.Balance.Whole[:])
	for i := range w.Rows {
		largest = max(largest, slices.Max(w.Rows[i].Usage.Amount[:]))
	}
	for coarsest > 0 && float64(largest)*float64(grains[coarsest])/float64(length) >= MaxAmount/2 {
		coarsest--
	}
	return grains[coarsest]
}

// A window that is being cut.
type window struct {
	*CutWindow
	shares  []usage.Shares // of all rows, by piece
	sum     usage.Shares   // of all rows
	covered time.Duration
}

// A part is the n-th piece of a row, by where they stand. Parts are put in order
// in place of usages, which are ten times as large.
type part struct {
	minute         int64
	workload       workload.ShortID
	window, row, n int32
}

type cutter struct {
	Cuts
	windows []window
	parts   []part
	nodes   map[int64]int // where in Nodes a minute is
	talks   map[talk]*connection.Sketch
}

// divide finds the parts of the rows of the i-th window.
func (c *cutter) divide(i int) error {
	w := &c.windows[i]
	w.CutWindow = &c.Windows[i]
	w.covered = w.Total.Covered
	w.shares = make([]usage.Shares, len(w.Edges))
	for j := range w.Rows {
		r := &w.Rows[j]
		if err := checkUsage(&r.Usage); err != nil {
			return err
		}
		for n, res := range usage.Wholes {
			if v, ok := r.Usage.Get(res); ok {
				if w.sum[n] > math.MaxInt64-v {
					return fmt.Errorf("%s of its rows overflows: %w", res, fault.ErrInvalid)
				}
				w.sum[n] += v
			}
		}
		w.covered = max(w.covered, r.Usage.Covered)
		if err := c.divideConnections(w, r); err != nil {
			return err
		}
		if r.Usage.Present == 0 && r.Usage.Covered == 0 {
			continue
		}
		for n := range w.Edges {
			c.parts = append(c.parts, part{w.minute(n), r.ShortID, int32(i), int32(j), int32(n)})
		}
	}
	return nil
}

// sumParts adds up the parts of the same minute and workload.
func (c *cutter) sumParts() error {
	slices.SortFunc(c.parts, func(a, b part) int {
		return cmp.Or(cmp.Compare(a.minute, b.minute), cmp.Compare(a.workload, b.workload), cmp.Compare(a.window, b.window))
	})
	// together reports whether the i-th part has the minute and workload of the previous part.
	together := func(i int) bool {
		return i > 0 && c.parts[i].minute == c.parts[i-1].minute && c.parts[i].workload == c.parts[i-1].workload
	}
	n := 0
	for i := range c.parts {
		if !together(i) {
			n++
		}
	}
	c.Minutes = slices.Grow(c.Minutes, n)
	var before time.Duration // covered before the window
	for i, p := range c.parts {
		if !together(i) {
			c.Minutes = append(c.Minutes, batch.Minute{Workload: p.workload, Minute: p.minute})
		}
		w := &c.windows[p.window]
		u := &c.Minutes[len(c.Minutes)-1].Usage
		if !together(i) || p.window != c.parts[i-1].window {
			before = u.Covered
		}
		if err := w.add(u, &w.Rows[p.row].Usage, int(p.n), &w.shares[p.n]); err != nil {
			return fmt.Errorf("window %d: workload %016x: %w", p.window, p.workload, err)
		}
		// Lives that follow each other in a window share a tick: both cover it.
		u.Covered = min(u.Covered, before+time.Duration(w.amountOf(w.End-w.Start, int(p.n))))
	}
	return nil
}

// amountOf is what of total stands in the window's n-th piece.
func (w *window) amountOf(total int64, n int) int64 {
	v := w.Cumulative(total, n)
	if n > 0 {
		v -= w.Cumulative(total, n-1)
	}
	return v
}

// add adds the n-th piece of u to to, and to shares what of it is of the Wholes.
func (w *window) add(to, u *usage.Usage, n int, shares *usage.Shares) error {
	left := [2]int64{w.amountOf(u.Amount[usage.NetworkRx], n), w.amountOf(u.Amount[usage.NetworkTx], n)}
	for set := u.Present; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		v := u.Amount[r]
		if r.Detail().Kind != usage.Peak {
			v = w.amountOf(v, n)
		}
		if usage.Classified.Has(r) {
			// Each amount is rounded by itself: a byte or so more than the traffic as a whole is not classified.
			of := &left[(r-usage.NetworkRxNode)%2]
			v = min(v, *of)
			*of -= v
		}
		if v >= MaxAmount-to.Amount[r] {
			return fmt.Errorf("%s is more than a minute can hold: %w", r, fault.ErrInvalid)
		}
		to.Put(r, v, u.Quality.Get(r))
	}
	covered := time.Duration(w.amountOf(int64(u.Covered), n))
	if covered >= MaxAmount-to.Covered {
		return fmt.Errorf("it covers %v of a minute, and %v more: %w", to.Covered, covered, fault.ErrInvalid)
	}
	to.Covered += covered
	if shares != nil {
		for i, r := range usage.Wholes {
			if v, ok := u.Get(r); ok {
				shares[i] += w.amountOf(v, n)
			}
		}
	}
	return nil
}

// addNode books what the machine as a whole did.
func (c *cutter) addNode(w *window) error {
	if err := checkUsage(&w.Total); err != nil {
		return err
	}
	b := &w.Balance
	if b.Violations < 0 || b.Lost < 0 || b.Violations >= MaxAmount || b.Lost >= MaxAmount || w.CPUs < 0 {
		return fmt.Errorf("counts of violations, losses and CPUs: %w", fault.ErrInvalid)
	}
	// A difference between whole + skew and rows is a defect of the sender, and
	// Cut keeps its size.
	var missing usage.Shares
	broken := int64(0)
	for i, r := range usage.Wholes {
		if b.Whole[i] < 0 || b.Skew[i] > math.MaxInt64-b.Whole[i] {
			return fmt.Errorf("whole of %s: %w", r, fault.ErrInvalid)
		}
		missing[i] = b.Whole[i] + b.Skew[i] - w.sum[i]
		if missing[i] < -math.MaxInt64/2 || missing[i] > math.MaxInt64/2 {
			return fmt.Errorf("whole of %s is far from its parts: %w", r, fault.ErrInvalid)
		}
		if missing[i] != 0 {
			broken++
		}
	}
	violations := b.Violations
	if violations == 0 {
		violations = broken
	}
	covered := min(w.covered, time.Duration(w.End-w.Start))
	for n := range w.Edges {
		at := w.minute(n)
		i, ok := c.nodes[at]
		if !ok {
			i = len(c.Nodes)
			c.nodes[at] = i
			c.Nodes = append(c.Nodes, batch.NodeMinute{Minute: at})
		}
		to := &c.Nodes[i]
		to.CPUs = w.CPUs
		to.Covered += time.Duration(w.amountOf(int64(covered), n))
		to.Violations += w.amountOf(violations, n)
		to.Lost += w.amountOf(b.Lost, n)
		for i, r := range usage.Wholes {
			whole := w.amountOf(b.Whole[i], n)
			skew := w.shares[n][i] - whole + w.amountOf(missing[i], n)
			if whole >= MaxAmount-to.Whole[i] || abs(skew) >= MaxAmount || abs(to.Skew[i]+skew) >= MaxAmount {
				return fmt.Errorf("whole of %s is more than a minute can hold: %w", r, fault.ErrInvalid)
			}
			to.Whole[i] += whole
			to.Skew[i] += skew
		}
		if err := w.add(&to.Total, &w.Total, n, nil); err != nil {
			return fmt.Errorf("total: %w", err)
		}
	}
	return nil
}

// checkUsage refuses amounts that cannot be.
func checkUsage(u *usage.Usage) error {
	if u.Present&^usage.All != 0 {
		return fmt.Errorf("resources %x are not known: %w", u.Present&^usage.All, fault.ErrInvalid)
	}
	for r := range (u.Present & usage.Specified).All() {
		return fmt.Errorf("%s is not measured by agents: %w", r, fault.ErrInvalid)
	}
	if u.Covered < 0 {
		return fmt.Errorf("it covers %d ns: %w", int64(u.Covered), fault.ErrInvalid)
	}
	for set := u.Present; set != 0; set &= set - 1 {
		r := usage.Resource(bits.TrailingZeros64(uint64(set)))
		if u.Amount[r] < 0 {
			return fmt.Errorf("%s of %d: %w", r, u.Amount[r], fault.ErrInvalid)
		}
	}
	return checkClasses(u)
}

// checkClasses refuses traffic by class that is more than the traffic as a whole.
func checkClasses(u *usage.Usage) error {
	for _, d := range usage.Directions {
		left, _ := u.Get(d.Whole)
		for r := range (u.Present & d.Classes).All() {
			if u.Amount[r] > left {
				return fmt.Errorf("%s: the classes have more than %d bytes: %w", d.Whole, u.Amount[d.Whole], fault.ErrInvalid)
			}
			left -= u.Amount[r]
		}
	}
	return nil
}

// portion is total x part / length in 128 bits, rounded toward 0, for 0 <= part <= length.
func portion(total, part, length int64) int64 {
	hi, lo := bits.Mul64(uint64(abs(total)), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(length))
	if total < 0 {
		return -int64(q)
	}
	return int64(q)
}
