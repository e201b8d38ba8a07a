package check

import (
	"fmt"
	"math"
	"strings"

	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// checkClasses checks that of each row the network traffic by class is at most the traffic as a whole.
func (c *checkRun) checkClasses(r schema.Range) error {
	rs := []usage.Resource{usage.NetworkRx, usage.NetworkTx}
	for class := range usage.Classified.All() {
		rs = append(rs, class)
	}
	var names []string
	amounts, minute, id := make([]int64, len(rs)), int64(0), int64(0)
	into := []any{&minute, &id}
	for i, r := range rs {
		names, into = append(names, r.String()), append(into, &amounts[i])
	}
	query := fmt.Sprintf("SELECT minute, workload, %s FROM %s WHERE minute >= $1 AND minute < $2 AND present & $3 <> 0 ORDER BY minute, workload",
		strings.Join(names, ", "), r.Table(schema.UsageLayout))
	statement, err := c.prepare(query)
	if err != nil {
		return err
	}
	var found faults
	err = db.Each(c.Ctx, db.Prepared{Stmt: statement}, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		for whole := range 2 {
			var classes, all wideInt
			for i := 2 + whole; i < len(rs); i += 2 {
				classes = classes.add(newWideInt(0, amounts[i]))
			}
			all = newWideInt(0, amounts[whole])
			// The largest amount stands for more.
			if amounts[whole] == math.MaxInt64 || classes.hi < all.hi || classes.hi == all.hi && classes.lo <= all.lo {
				continue
			}
			f := c.span(r.Level, minute, fmt.Sprintf("%s: the classes have %s bytes, all traffic has %s", rs[whole], classes, all))
			if f.Resource, f.Have, f.Want = rs[whole].String(), all.String(), classes.String(); r.Level != schema.Minutes {
				f.Text = "the " + r.Level.Name() + ": " + f.Text
			}
			found.add(id, f)
		}
		return nil
	}, query, r.From, r.To, int64(usage.Classified))
	if err != nil {
		return err
	}
	return c.reportFaults("classes", schema.UsageLayout, &found, true)
}
