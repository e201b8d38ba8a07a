package check

import (
	"fmt"

	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// checkVersions checks that versions are of the workloads that they say.
func (c *checkRun) checkVersions() error {
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "version"}
		var short int64
		if err := scan(&f.Node, &f.Name, &short, &f.From); err != nil {
			return err
		}
		f.Workload, f.To = fmt.Sprintf("%016x", uint64(short)), f.From+1
		f.Text = "the version that begins then is of no workload, or of another one"
		c.add(f)
		return nil
	}, `SELECT n.node_id, n.name, w.short, w.from_minute FROM workload w JOIN node n ON n.id = w.node LEFT JOIN workload f ON f.id = w.version_of
		WHERE (w.version_of <> 0) <> (w.from_minute <> 0) OR w.version_of <> 0 AND (f.version_of <> 0 OR f.node <> w.node OR f.short <> w.short) ORDER BY n.id, w.id`)
}

// checkVersionsOf checks that the rows of a range are of the versions that their workloads had then: others
// would be counted under another job or namespace.
func (c *checkRun) checkVersionsOf(r schema.Range) error {
	some, err := db.Ints(c.Ctx, c.SQL, "SELECT id FROM workload WHERE version_of <> 0 LIMIT 1")
	if err != nil || len(some) == 0 {
		return err
	}
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "version"}
		var short int64
		var n, from int64
		if err := scan(&f.Node, &f.Name, &short, &from, &n, &f.From); err != nil {
			return err
		}
		f.Workload, f.To = fmt.Sprintf("%016x", uint64(short)), f.From+r.Level.Width()
		f.Text = fmt.Sprintf("%d rows of table %s are of its version from %s on, which is not the version of their time", n, r.Table(schema.UsageLayout), schema.FormatMinute(from))
		c.add(f)
		return nil
	}, fmt.Sprintf(`SELECT n.node_id, n.name, w.short, w.from_minute, count(*), min(m.minute) FROM %[1]s m JOIN workload w ON w.id = %[2]s JOIN node n ON n.id = w.node
		WHERE m.minute >= $1 AND m.minute < $2 AND w.id IN (SELECT id FROM workload WHERE version_of <> 0 UNION SELECT version_of FROM workload WHERE version_of <> 0)
		AND %[4]s AND (w.from_minute >= m.minute + %[3]s OR EXISTS (SELECT 1 FROM workload x WHERE x.node = w.node AND x.short = w.short AND x.from_minute > w.from_minute AND x.from_minute <= m.minute))
		GROUP BY n.id, n.node_id, n.name, w.id, w.short, w.from_minute ORDER BY n.id, w.id`,
		r.Table(schema.UsageLayout), schema.IDOf("m.workload"), widthOf(r.Level), schema.HasContent("m")), r.From, r.To)
}

// widthOf returns SQL for the minutes that a row m of a level holds: it may hold a coarser span.
func widthOf(v schema.Level) string {
	width := fmt.Sprint(v.Width())
	for held := v + 1; held <= schema.Days; held++ {
		width = fmt.Sprintf("CASE WHEN m.rough & %d <> 0 THEN %d ELSE %s END", schema.HoldsHour<<(held-schema.Hours), held.Width(), width)
	}
	return width
}
