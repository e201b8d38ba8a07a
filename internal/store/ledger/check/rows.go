package check

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// checkFile lets SQLite check the pages, indexes and constraints of a table.
func (c *checkRun) checkFile(table string) error {
	return c.each(func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil || text == "ok" {
			return err
		}
		c.add(Finding{Kind: "file", Text: table + ": " + text})
		return nil
	}, "PRAGMA integrity_check('"+table+"')")
}

// each calls f for each row of a query.
func (c *checkRun) each(f func(scan func(...any) error) error, query string, args ...any) error {
	return db.Each(c.Ctx, c.SQL, f, c.DB.Expand(query), args...)
}

// checkNodes counts nodes and workloads, and checks the names of nodes and who owns them.
func (c *checkRun) checkNodes() error {
	err := c.SQL.QueryRowContext(c.Ctx, "SELECT (SELECT count(*) FROM node n WHERE NOT "+schema.IsVolumesOf("n")+"), (SELECT count(*) FROM workload WHERE version_of = 0)").Scan(&c.result.Nodes, &c.result.Workloads)
	if err != nil {
		return err
	}
	err = c.each(func(scan func(...any) error) error {
		var cluster, name, first, last string
		var n int
		if err := scan(&cluster, &name, &n, &first, &last); err != nil {
			return err
		}
		c.add(Finding{Kind: "name", Text: fmt.Sprintf("%d nodes of cluster %q have the name %q, the first is %s, the last %s", n, cluster, name, first, last)})
		return nil
	}, `SELECT cluster, name, count(*), min(node_id), max(node_id) FROM node WHERE source = 0 AND revoked_ns = 0 AND name <> ''
		GROUP BY cluster, name, machine_id LIKE '% jobs' HAVING count(*) > 1 ORDER BY cluster, name`)
	if err != nil {
		return err
	}
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "foreign"}
		var source string
		if err := scan(&f.Node, &f.Name, &source); err != nil {
			return err
		}
		f.Text = fmt.Sprintf("its rows are from server %s, whose rows of it are to be left out", source)
		c.add(f)
		return nil
	}, "SELECT n.node_id, n.name, s.source_id FROM foreign_node f JOIN node n ON n.id = f.node JOIN source s ON s.id = f.source WHERE n.source = f.source ORDER BY n.id")
}

// checkPlaces checks that rows are where readers look for them: each day of minutes has its tables,
// and each table its day; marks and floors are in order.
func (c *checkRun) checkPlaces() error {
	tables, err := c.Tables()
	if err != nil {
		return err
	}
	kept, err := db.Ints(c.Ctx, c.SQL, "SELECT day FROM kept ORDER BY day")
	if err != nil {
		return err
	}
	place := func(format string, args ...any) { c.add(Finding{Kind: "place", Text: fmt.Sprintf(format, args...)}) }
	known := map[string]bool{}
	for _, day := range kept {
		for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
			if known[s.MinuteTable(day)] = true; !slices.Contains(tables, s.MinuteTable(day)) {
				c.incomplete[day] = true
				place("table %s is missing", s.MinuteTable(day))
			}
		}
	}
	for _, t := range tables {
		if rest, ok := strings.CutPrefix(strings.TrimPrefix(t, "node_"), "minute_"); ok && len(rest) == len("20060102") && !known[t] {
			place("table %s belongs to no day that is kept", t)
		}
	}
	m := c.Marks
	for _, at := range []struct {
		name   string
		minute int64
		unit   int64
		most   int64
		limit  string
	}{
		{"hours are folded up to", m.Hour, schema.HourMinutes, schema.MaxKey, ""},
		{"days are folded up to", m.Day, schema.DayMinutes, m.Hour, "hours are"},
		{"minutes are dropped up to", m.MinuteFloor, schema.DayMinutes, m.Hour, "hours are folded"},
		{"hours are dropped up to", m.HourFloor, schema.DayMinutes, m.Day, "days are folded"},
	} {
		switch {
		case at.minute%at.unit != 0:
			place("%s %s, in the middle of one", at.name, schema.FormatMinute(at.minute))
		case at.minute > at.most:
			place("%s %s, but %s only up to %s", at.name, schema.FormatMinute(at.minute), at.limit, schema.FormatMinute(at.most))
		}
	}
	return nil
}

// undeclared are references that the schema does not declare, as 0 stands for none, or as the
// referring rows may come first.
var undeclared = []db.Reference{
	{Table: "batch", Column: "stream", To: "stream", ToColumn: "id"},
	{Table: "node", Column: "source", To: "source", ToColumn: "id"},
	{Table: "node", Column: "run", To: "kernel_run", ToColumn: "id"},
	{Table: "workload", Column: "version_of", To: "workload", ToColumn: "id"},
}

// checkReferences checks that the rows exist to which others refer.
func (c *checkRun) checkReferences() error {
	list, err := c.References()
	if err != nil {
		return err
	}
	for _, r := range slices.Concat(list, undeclared, undeclaredNested) {
		none := "''"
		if r.ToColumn == "id" && r.To != "stream" {
			none = "0"
		}
		if r.To == "stream" {
			none = "NULL"
		}
		query := fmt.Sprintf("SELECT c.%[2]s, count(*) FROM %[1]s c LEFT JOIN %[3]s p ON p.%[4]s = c.%[2]s WHERE p.%[4]s IS NULL", r.Table, r.Column, r.To, r.ToColumn)
		if !slices.Contains(list, r) && none != "NULL" {
			query += fmt.Sprintf(" AND c.%s <> %s", r.Column, none)
		}
		err := c.each(func(scan func(...any) error) error {
			var id any
			var n int64
			if err := scan(&id, &n); err != nil {
				return err
			}
			if b, ok := id.([]byte); ok {
				id = fmt.Sprintf("%x", b)
			}
			c.add(Finding{Kind: "orphan", Text: fmt.Sprintf("%d rows of table %s have %s %v, which does not exist in table %s", n, r.Table, r.Column, id, r.To)})
			return nil
		}, query+fmt.Sprintf(" GROUP BY c.%[1]s ORDER BY c.%[1]s", r.Column))
		if err != nil {
			return err
		}
	}
	return nil
}

// checkOwners checks that the rows of a day have a workload or node, and are under a minute of the
// day at which rows of their level begin.
func (c *checkRun) checkOwners(day int64) error {
	for _, s := range []*schema.Layout{schema.UsageLayout, schema.NodeLayout} {
		for _, v := range []schema.Level{schema.Minutes, schema.Hours, schema.Days} {
			if v == schema.Minutes && !c.hasMinutes(day) {
				continue
			}
			r := schema.Range{Level: v, From: day, To: day + schema.DayMinutes}
			err := c.each(func(scan func(...any) error) error {
				var id, n, first int64
				if err := scan(&id, &n, &first); err != nil {
					return err
				}
				f := c.span(v, first, fmt.Sprintf("%d rows of table %s have %s %d, which does not exist", n, r.Table(s), s.Key, id))
				f.Kind = "orphan"
				c.add(f)
				return nil
			}, fmt.Sprintf("SELECT %[3]s, count(*), min(m.minute) FROM %[2]s m LEFT JOIN %[1]s o ON o.id = %[3]s WHERE o.id IS NULL AND m.minute >= $1 AND m.minute < $2 GROUP BY %[3]s ORDER BY %[3]s",
				s.Key, r.Table(s), schema.IDOf("m."+s.Key)), r.From, r.To)
			if err != nil {
				return err
			}
			if err := c.checkWithin(s, r); err != nil {
				return err
			}
			if s == schema.UsageLayout {
				if err := c.checkVersionsOf(r); err != nil {
					return err
				}
			}
			where, args := "minute >= $1 AND minute < $2 AND minute % $3 <> 0", []any{r.From, r.To, v.Width()}
			if v == schema.Minutes {
				where, args = "minute < $1 OR minute >= $2", args[:2]
			}
			err = c.each(func(scan func(...any) error) error {
				var n, first int64
				if err := scan(&n, &first); err != nil || n == 0 {
					return err
				}
				f := c.span(schema.Minutes, first, fmt.Sprintf("%d rows of table %s begin where no reader looks for them", n, r.Table(s)))
				f.Kind = "place"
				c.add(f)
				return nil
			}, fmt.Sprintf("SELECT count(*), coalesce(min(minute), 0) FROM %s WHERE %s", r.Table(s), where), args...)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// checkStreams compares the batches of streams with their marks.
func (c *checkRun) checkStreams() error {
	err := c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "stream"}
		var stream []byte
		var number, next int64
		if err := scan(&f.Node, &f.Name, &stream, &number, &next); err != nil {
			return err
		}
		f.Text = fmt.Sprintf("stream %x: batch %d is booked, but the next one is %d", stream, number, next)
		if number == next-1 {
			f.Text = fmt.Sprintf("stream %x: the mark has another hash than the last batch, %d", stream, number)
		}
		c.add(f)
		return nil
	}, `SELECT n.node_id, n.name, s.id, b.number, s.next FROM batch b JOIN stream s ON s.id = b.stream JOIN node n ON n.id = s.node
		WHERE b.number >= s.next OR b.number = s.next - 1 AND b.hash <> s.last ORDER BY s.id, b.number`)
	if err != nil {
		return err
	}
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "conflict", Warning: true}
		var stream []byte
		var number, at int64
		if err := scan(&f.Node, &f.Name, &stream, &number, &at); err != nil {
			return err
		}
		f.From = at / int64(time.Minute)
		f.To = f.From + 1
		f.Text = fmt.Sprintf("batch %d of stream %x contradicted a booked one, and was put aside", number, stream)
		c.add(f)
		return nil
	}, "SELECT n.node_id, n.name, a.stream, a.number, a.at_ns FROM aside a JOIN node n ON n.id = a.node ORDER BY a.id")
}

// checkBooked compares each booked range with the previous one of its kernel run.
func (c *checkRun) checkBooked() error {
	var last struct {
		run, to int64
		scope   string
	}
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "booked"}
		var run, from, to int64
		var scope, boot string
		if err := scan(&run, &scope, &from, &to, &boot, &f.Node, &f.Name); err != nil {
			return err
		}
		switch {
		case to <= from:
			f.Text = fmt.Sprintf("run %d of boot %s, scope %s: the range from %d to %d ns is empty", run, boot, scope, from, to)
			c.add(f)
		case run == last.run && scope == last.scope && from <= last.to:
			f.Text = fmt.Sprintf("run %d of boot %s, scope %s: the range from %d to %d ns does not begin after the previous one, which ends at %d ns: %v booked twice",
				run, boot, scope, from, to, last.to, time.Duration(min(last.to, to)-from))
			c.add(f)
		}
		last.run, last.scope, last.to = run, scope, to
		return nil
	}, `SELECT b.run, b.scope, b.from_ns, b.to_ns, k.boot, coalesce(n.node_id, ''), coalesce(n.name, '')
		FROM booked b JOIN kernel_run k ON k.id = b.run LEFT JOIN node n ON n.id = b.node ORDER BY b.run, b.scope, b.from_ns`)
}

// checkClusters looks for kernels whose time is booked in two clusters, each of which compares only
// its own.
func (c *checkRun) checkClusters() error {
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "clusters", Warning: true}
		var boot, cluster, other, otherNode string
		var from, to int64
		if err := scan(&boot, &cluster, &other, &f.Node, &f.Name, &otherNode, &from, &to); err != nil {
			return err
		}
		f.Text = fmt.Sprintf("the kernel with boot id %s is booked in cluster %s and, by node %s, in cluster %s: both have its time between %v and %v after boot",
			boot, cluster, otherNode, other, time.Duration(from), time.Duration(to))
		c.add(f)
		return nil
	}, fmt.Sprintf(`SELECT ka.boot, ka.cluster, kb.cluster, min(na.node_id), min(na.name), min(nb.node_id),
		min(CASE WHEN a.from_ns > b.from_ns THEN a.from_ns ELSE b.from_ns END), max(CASE WHEN a.to_ns < b.to_ns THEN a.to_ns ELSE b.to_ns END)
		FROM kernel_run ka JOIN kernel_run kb ON kb.boot = ka.boot AND kb.cluster > ka.cluster
		JOIN booked a ON a.run = ka.id JOIN booked b ON b.run = kb.id AND b.from_ns < a.to_ns AND b.to_ns > a.from_ns AND (b.scope = a.scope OR a.scope = '%[1]s' OR b.scope = '%[1]s')
		JOIN node na ON na.id = a.node JOIN node nb ON nb.id = b.node
		WHERE ka.boot <> '' GROUP BY ka.boot, ka.cluster, kb.cluster ORDER BY ka.boot, ka.cluster, kb.cluster`, usage.Machine))
}

// checkShares checks the comparisons of what hosts gave with what their guests received.
func (c *checkRun) checkShares() error {
	err := c.each(func(scan func(...any) error) error {
		var f Finding
		var guest string
		var compared, differing, largest int64
		if err := scan(&f.From, &f.Node, &f.Name, &guest, &compared, &differing, &largest); err != nil {
			return err
		}
		f.Kind, f.To = "share", f.From+schema.DayMinutes
		f.Text = fmt.Sprintf("guest %s: %d shares compared, %d of them differ, by at most %d uJ", guest, compared, differing, largest)
		c.add(f)
		return nil
	}, `SELECT r.minute, n.node_id, n.name, r.guest, r.compared, r.differing, r.largest FROM reconciled r JOIN node n ON n.id = r.node
		WHERE r.compared < 1 OR r.differing < 0 OR r.differing > r.compared OR (r.largest > 0) <> (r.differing > 0) ORDER BY r.minute, n.id`)
	if err != nil {
		return err
	}
	// Closings are kept for two days, and each that was compared is counted.
	return c.each(func(scan func(...any) error) error {
		var f Finding
		var closings, compared int64
		if err := scan(&f.From, &f.Node, &f.Name, &closings, &compared); err != nil {
			return err
		}
		f.Kind, f.To, f.Have, f.Want = "share", f.From+schema.DayMinutes, fmt.Sprint(compared), fmt.Sprint(closings)
		f.Text = fmt.Sprintf("%d shares are counted as compared, but %d received ones were", compared, closings)
		c.add(f)
		return nil
	}, fmt.Sprintf(`SELECT k.day, n.node_id, n.name, k.closings, coalesce(r.compared, 0) FROM (
			SELECT node, x - x %% %[1]d AS day, count(*) AS closings FROM (
				SELECT node, (CASE WHEN to_ns > from_ns THEN to_ns - 1 ELSE from_ns END) / %[2]d AS x FROM closing WHERE compared = 1) AS c GROUP BY node, x - x %% %[1]d) AS k
		JOIN node n ON n.id = k.node
		LEFT JOIN (SELECT minute, node, CAST(sum(compared) AS {int}) AS compared FROM reconciled GROUP BY minute, node) AS r ON r.node = k.node AND r.minute = k.day
		WHERE coalesce(r.compared, 0) < k.closings ORDER BY k.day, n.id`, schema.DayMinutes, int64(time.Minute)))
}

// checkGaps looks for gaps that end before they begin, as their node reported them.
func (c *checkRun) checkGaps() error {
	return c.each(func(scan func(...any) error) error {
		f := Finding{Kind: "gap", Warning: true}
		var from, to int64
		var reason string
		if err := scan(&f.Node, &f.Name, &from, &to, &reason); err != nil {
			return err
		}
		f.Text = fmt.Sprintf("gap %s begins at %v and ends at %v", reason, schema.FromNanos(from), schema.FromNanos(to))
		c.add(f)
		return nil
	}, "SELECT n.node_id, n.name, g.from_ns, g.to_ns, g.reason FROM gap g JOIN node n ON n.id = g.node WHERE g.to_ns < g.from_ns ORDER BY g.id")
}
