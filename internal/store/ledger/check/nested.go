package check

import (
	"fmt"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// undeclaredNested are references of guests to their hosts, in which 0 is none.
var undeclaredNested = []db.Reference{
	{Table: "node", Column: "host", To: "node", ToColumn: "id"},
	{Table: "node", Column: "host_workload", To: "workload", ToColumn: "id"},
	{Table: "within_day", Column: "host", To: "node", ToColumn: "id"},
	{Table: "within_day", Column: "workload", To: "workload", ToColumn: "id"},
}

// checkNested checks that guests are workloads of their hosts, and that no two nodes are guests of
// each other, which would leave both out of sums. A host that is the node itself is not known.
func (c *checkRun) checkNested() error {
	return c.each(func(scan func(...any) error) error {
		var f Finding
		var host string
		var circle bool
		if err := scan(&f.From, &f.Node, &f.Name, &host, &circle); err != nil {
			return err
		}
		f.Kind, f.To = "nested", f.From+schema.DayMinutes
		f.Text = fmt.Sprintf("it is a guest of node %s, but as a workload of another node", host)
		if circle {
			f.Text = fmt.Sprintf("it and node %s are guests of each other", host)
		}
		c.add(f)
		return nil
	}, `SELECT d.minute, n.node_id, n.name, h.node_id, CASE WHEN o.node IS NOT NULL THEN 1 ELSE 0 END
		FROM within_day d JOIN node n ON n.id = d.node JOIN node h ON h.id = d.host LEFT JOIN workload w ON w.id = d.workload
		LEFT JOIN within_day o ON o.node = d.host AND o.host = d.node AND o.minute = d.minute
		WHERE d.host <> d.node AND (o.node IS NOT NULL OR d.workload <> 0 AND w.node <> d.host) ORDER BY d.minute, n.id`)
}

// checkWithin checks that the rows of a day that are within a host are known to be: queries find
// the hosts by day.
func (c *checkRun) checkWithin(s *schema.Layout, r schema.Range) error {
	owner, id := "m."+s.Key, schema.IDOf("m."+s.Key)
	from := fmt.Sprintf("%s m JOIN node n ON n.id = %s", r.Table(s), id)
	if s == schema.UsageLayout {
		from = fmt.Sprintf("%s m JOIN workload w ON w.id = %s JOIN node n ON n.id = w.node", r.Table(s), id)
	}
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "nested"}
		var host, rows int64
		if err := scan(&f.Node, &f.Name, &host, &rows, &f.From); err != nil {
			return err
		}
		f.To = f.From + r.Level.Width()
		f.Text = fmt.Sprintf("%d rows of table %s are within node %d, which is not known as its host on this day", rows, r.Table(s), host)
		c.add(f)
		return nil
	}, fmt.Sprintf(`SELECT n.node_id, n.name, %[1]s, count(*), min(m.minute) FROM %[2]s
		LEFT JOIN within_day x ON x.node = n.id AND x.minute = $1 AND x.host = %[1]s
		WHERE %[3]s >= %[4]d AND m.minute >= $1 AND m.minute < $2 AND x.node IS NULL GROUP BY n.id, n.node_id, n.name, %[1]s ORDER BY n.id`,
		schema.WithinOf(owner), from, owner, int64(schema.FirstWithin)), r.From, r.To)
}
