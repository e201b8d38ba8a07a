package torture

import (
	"database/sql"
	"fmt"
	"strings"

	"mete.dev/mete/internal/testkit"
)

// above waits until the core has all rows, and compares its ledger with the kernel and with
// the ledger of the server below.
func (r *rig) above(told *checker, exact func(life) bool) {
	db := r.open(r.coreDSN)
	defer func() { _ = db.Close() }() // only read
	c := &checker{rig: r, db: db, lost: told.lost}
	want := told.used()
	r.t.Log("the core:")
	testkit.Eventually(r.t, "the core has all rows", func() bool {
		var days int
		err := db.QueryRow("SELECT count(*) FROM kept").Scan(&days)
		if err != nil || days == 0 {
			return false
		}
		c.minutes = nil
		c.tables()
		return c.used() == want
	})
	r.folded(db)
	c.balance()
	c.cpu(exact)
	c.folds()
	for _, node := range []bool{false, true} {
		r.alike(told.states(node), c.states(node))
	}
	for _, table := range []string{"gap", "shift"} {
		want, got := told.count(table), c.count(table)
		if got != want {
			r.t.Errorf("the core has %d rows of table %s, the server %d", got, table, want)
		}
	}
}

// used returns the sum of all CPU time.
func (c *checker) used() amount {
	return c.sum("SELECT CAST(sum(cpu >> 32) AS bigint), CAST(sum(cpu & 4294967295) AS bigint) FROM " + c.all(""))
}

func (c *checker) count(table string) (n int) {
	c.t.Helper()
	c.must(c.db.QueryRow("SELECT count(*) FROM " + table).Scan(&n))
	return n
}

// folded waits until a ledger has folded all stale days.
func (r *rig) folded(db *sql.DB) {
	testkit.Eventually(r.t, "the server has folded", func() bool {
		var left int
		err := db.QueryRow("SELECT count(*) FROM stale_day").Scan(&left)
		return err == nil && left == 0
	})
}

// states returns the minute rows of workloads or nodes, by node, workload and minute, without
// the columns that differ between ledgers.
func (c *checker) states(node bool) map[string]string {
	query := "SELECT n.node_id, w.short, m.* FROM " + c.all("") + " JOIN workload w ON w.id = m.workload JOIN node n ON n.id = w.node"
	if node {
		query = "SELECT n.node_id, 0 AS short, m.* FROM " + c.all("node_") + " JOIN node n ON n.id = m.node"
	}
	rows, err := c.db.Query(query)
	c.must(err)
	names, err := rows.Columns()
	c.must(err)
	all := map[string]string{}
	for rows.Next() {
		values, into := make([]any, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		c.must(rows.Scan(into...))
		var key, row strings.Builder
		for i, name := range names {
			switch name {
			case "node_id", "short", "minute":
				fmt.Fprintf(&key, "%s %v ", name, values[i])
			case "rev", "workload", "node":
			default:
				fmt.Fprintf(&row, "%s %v ", name, values[i])
			}
		}
		all[key.String()] = row.String()
	}
	c.must(rows.Err())
	c.must(rows.Close())
	return all
}

// alike checks that the rows of two ledgers are equal.
func (r *rig) alike(server, core map[string]string) {
	bad := 0
	for key, row := range server {
		if core[key] != row {
			if bad++; bad <= 10 {
				r.t.Errorf("%s\nthe server has %q\nthe core has   %q", key, row, core[key])
			}
		}
	}
	if bad > 10 {
		r.t.Errorf("%d rows differ", bad)
	}
	for key, row := range core {
		if _, ok := server[key]; !ok {
			r.t.Errorf("%s\nthe core has %q, the server has no such row", key, row)
		}
	}
	r.t.Logf("%d rows of the server and the core are equal", len(server)-bad)
}
