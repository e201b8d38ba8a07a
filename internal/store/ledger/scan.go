package ledger

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"

	"mete.dev/mete/internal/meter"
	"mete.dev/mete/internal/unit"
)

// A scanner adds rows of usage to their groups one by one. SQLite has no
// grouping but by sorting, which costs three times as much. It hands the rows to
// a function of SQL within the database, for half of what it costs to fetch
// them.
type scanner struct {
	*selection
	v       *view // the moment, by a connection of the scanner's own
	groups  groups
	known   roll
	width   int64
	row     [scanColumns]int64
	waiting [][scanColumns]int64 // rows of workloads that have not been looked up
}

// scanners are those at work, by the numbers that SQL knows them by.
type scanners struct {
	last atomic.Int64
	all  sync.Map // of *scanner, by int64; each row asks for one
}

// enter gives a scanner its number, until it leaves.
func (s *scanners) enter(c *scanner) (number int64, leave func()) {
	number = s.last.Add(1)
	s.all.Store(number, c)
	return number, func() { s.all.Delete(number) }
}

// at finds a scanner by its number.
func (s *scanners) at(number any) *scanner {
	c, _ := s.all.Load(number)
	return c.(*scanner)
}

// A liteReader opens connections of SQLite that have the function mete_take: it
// gives a row to a scanner, and says whether the row has to be fetched, as its
// workload has not been looked up.
type liteReader struct {
	driver *sqlite.Driver
	dsn    string
}

func openReader(dsn string, s *scanners) (*sql.DB, error) {
	r := liteReader{&sqlite.Driver{}, dsn}
	err := r.driver.RegisterFunction("mete_take", &sqlite.FunctionImpl{NArgs: 1 + scanColumns,
		Scalar: func(_ *sqlite.FunctionContext, args []driver.Value) (driver.Value, error) {
			return s.at(args[0]).take(args[1:]), nil // all are integers
		}})
	return sql.OpenDB(r), err
}

// Connect implements driver.Connector.
func (r liteReader) Connect(context.Context) (driver.Conn, error) { return r.driver.Open(r.dsn) }

// Driver implements driver.Connector.
func (r liteReader) Driver() driver.Driver { return r.driver }

// Where the columns of a scan are.
const (
	scanWorkload = iota
	scanMinute
	scanPresent
	scanRough
	scanCovered
	scanAmounts
	scanColumns = scanAmounts + meter.Limit - 1
)

// lookup is for how many rows workloads are looked up at a time.
const lookup = 1000

// A roll is the groups of workloads. Rows come in the order of workloads, mostly,
// so that the next one is on the same page.
type roll struct {
	pages map[int64]*[rollPage]*group
	page  *[rollPage]*group
	at    int64 // number of page
}

const (
	rollPage  = 1 << 8
	rollPages = 1 << 13 // about; beyond it all is forgotten, and looked up again
)

// nobody is the group of workloads that were not asked for.
var nobody = &group{}

// of is the place for the group of a workload, in which nil stands where it has
// not been looked up.
func (r *roll) of(w int64) **group {
	if n := w / rollPage; r.page == nil || r.at != n {
		if r.page = r.pages[n]; r.page == nil {
			if r.pages == nil {
				r.pages = map[int64]*[rollPage]*group{}
			}
			r.page = &[rollPage]*group{}
			r.pages[n] = r.page
		}
		r.at = n
	}
	return &r.page[w%rollPage]
}

// scan adds the rows of a stretch.
func (c *scanner) scan(p stretch) error {
	c.width = p.level.width()
	number, leave := c.l.scanners.enter(c)
	defer leave()
	columns := []string{"u.workload", "u.minute", "u.present", "u.rough", "u.covered_ms"}
	for _, r := range resourceColumns() {
		columns = append(columns, "u."+r.name)
	}
	list := strings.Join(columns, ", ")
	args := c.args[:2]
	var chosen string
	if c.where != "" {
		args = c.args
		chosen = " AND u.workload IN (SELECT w.id FROM workload w JOIN node n ON n.id = w.node" + c.joins + " WHERE true" + c.where + ")"
	}
	text := fmt.Sprintf("SELECT %[1]s FROM %[2]s u WHERE u.minute >= $1 AND u.minute < $2%[3]s AND mete_take(%[4]d, %[1]s)",
		list, p.table(usageShape), chosen, number)
	into := make([]any, scanColumns)
	for i := range into {
		into[i] = &c.row[i]
	}
	err := c.v.eachOf(p, args, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		if c.waiting = append(c.waiting, c.row); len(c.waiting) < lookup {
			return nil
		}
		return c.lookUp()
	}, text)
	if err != nil {
		return err
	}
	return c.lookUp()
}

// take adds a row, unless its workload has to be looked up first.
func (c *scanner) take(values []driver.Value) bool {
	w, _ := values[scanWorkload].(int64)
	g := *c.known.of(w)
	if g == nil || g == nobody {
		return g == nil
	}
	for i, v := range values {
		c.row[i], _ = v.(int64)
	}
	g.add(&c.row, c.width)
	return false
}

// lookUp finds the groups of the workloads that wait.
func (c *scanner) lookUp() error {
	if len(c.waiting) == 0 {
		return nil
	}
	if len(c.known.pages) > rollPages {
		c.known = roll{}
	}
	ids := make([]string, 0, len(c.waiting))
	for i := range c.waiting {
		w := c.waiting[i][scanWorkload]
		if g := c.known.of(w); *g == nil {
			*g = nobody
			ids = append(ids, strconv.FormatInt(w, 10))
		}
	}
	text := fmt.Sprintf("SELECT w.id, n.id, %s FROM workload w JOIN node n ON n.id = w.node%s WHERE w.id IN (%s)%s",
		strings.Join(c.keys, ", "), c.joins, strings.Join(ids, ", "), c.where)
	keys := make([]string, len(c.keys))
	var id, node int64
	into := []any{&id, &node}
	for i := range keys {
		into = append(into, &keys[i])
	}
	err := each(c.v.ctx, c.v.tx, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		g := c.at(c.groups, keys, node)
		g.on(node)
		*c.known.of(id) = g
		return nil
	}, text, c.args...)
	if err != nil {
		return err
	}
	for i := range c.waiting {
		row := &c.waiting[i]
		if g := *c.known.of(row[scanWorkload]); g != nobody {
			g.add(row, c.width)
		}
	}
	c.waiting = c.waiting[:0]
	return nil
}

// add adds a row that spans width.
func (g *group) add(row *[scanColumns]int64, width int64) {
	g.seen(row[scanMinute], row[scanMinute]+width)
	g.mark(row[scanPresent], row[scanRough], row[scanCovered])
	for i, v := range row[scanAmounts:] {
		g.sum(i+1, unit.Sum{}.Add(v))
	}
}
