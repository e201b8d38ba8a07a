package fleet

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"mete.dev/mete/internal/model/usage"
)

// The resources of the seeded rows of workloads, of the residuals system and idle, and of nodes.
var (
	seeded    = residuals | usage.SetOf(usage.CPUUser, usage.CPUSystem) | traffic
	residuals = usage.SetOf(usage.CPU, usage.Memory, usage.EnergyPackage, usage.EnergyError)
	traffic   = usage.SetOf(usage.NetworkRx, usage.NetworkTx)
)

// seed writes past rows into a SQLite ledger: for each workload that it has, rows of the
// hours and the days up to today. It takes seconds, one hour at a time,
// so that the server can write meanwhile.
func seed(ctx context.Context, path string, c Config, now time.Time) (err error) {
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?_pragma=busy_timeout(30000)&_pragma=synchronous(off)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	today := now.Unix() / 86400 * 1440
	first := today - int64(c.Days)*1440
	var list []string
	for at := first; at < today; at += 60 {
		list = append(list, backdate(at, c.Classes)...)
	}
	of := seeded
	if c.Classes {
		of |= byClass()
	}
	list = append(list, foldDays("", "workload", of, first, today), foldDays("node_", "node", seeded, first, today))
	list = append(list,
		fmt.Sprintf("UPDATE counter SET hour_mark = max(hour_mark, %[1]d), day_mark = max(day_mark, %[1]d), minute_floor = %[1]d", today),
		fmt.Sprintf("UPDATE workload SET first_minute = min(first_minute, %d)", first),
		fmt.Sprintf("INSERT OR IGNORE INTO stale_day (minute) SELECT DISTINCT minute FROM day WHERE minute >= %d", first),
		"ANALYZE")
	for _, s := range list {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%w in %.200s", err, s)
		}
	}
	return nil
}

// byClass are the resources of traffic by class.
func byClass() (set usage.Set) {
	for _, c := range classes {
		set |= usage.SetOf(c.class.Rx(), c.class.Tx())
	}
	return set
}

// backdate returns the statements that write one row of an hour, from a minute on, for each
// workload and each node: idle is what the others leave of the node's capacity. They keep existing
// rows.
func backdate(minute int64, withClasses bool) (list []string) {
	pseudo := func(r usage.Resource, scale int64) string {
		return fmt.Sprintf("((w.id * 7919 + %d) %% 65521) * %d", minute+31*int64(r), scale)
	}
	cpu, energy := pseudo(usage.CPU, 4*3600000), pseudo(usage.EnergyPackage, 3600000/40)
	amounts := map[usage.Resource]string{usage.CPU: cpu, usage.CPUUser: cpu + " * 3 / 4", usage.CPUSystem: cpu + " - " + cpu + " * 3 / 4", usage.Memory: pseudo(usage.Memory, 40*3600000),
		usage.NetworkRx: pseudo(usage.NetworkRx, 3600), usage.NetworkTx: pseudo(usage.NetworkTx, 3600), usage.EnergyPackage: energy, usage.EnergyError: energy + " / 20"}
	for _, c := range classes {
		amounts[c.class.Rx()] = fmt.Sprintf("%s / %d", amounts[usage.NetworkRx], c.rx)
		amounts[c.class.Tx()] = fmt.Sprintf("%s / %d", amounts[usage.NetworkTx], c.tx)
	}
	rows := func(present usage.Set, where string) string {
		names, values := "", ""
		present.Each(func(r usage.Resource) { names, values = names+", "+r.String(), values+", "+amounts[r] })
		return fmt.Sprintf("INSERT OR IGNORE INTO hour (minute, workload, rev, present, rough, covered_ms%s) SELECT %d, w.id, 0, %d, 0, 3600000%s FROM workload w WHERE %s ORDER BY w.id", names, minute, int64(present), values, where)
	}
	used := func(r usage.Resource) string { return fmt.Sprintf("sum(coalesce(h.%s, 0))", r) }
	const seconds, joule = 3600, 1_000_000
	if withClasses { // the other workloads follow
		list = append(list, rows(seeded|byClass(), fmt.Sprintf("kind NOT IN ('idle', 'system') AND w.id %% 4 <> %d", unclassified)))
	}
	return append(list,
		rows(seeded, "kind NOT IN ('idle', 'system')"), rows(residuals, "kind = 'system'"),
		fmt.Sprintf("INSERT OR IGNORE INTO node_hour (minute, node, rev, present, rough, covered_ms, cpus, whole_cpu, whole_memory, whole_energy_package, network_rx, network_tx) SELECT %[1]d, n.id, 0, %[2]d, 0, 3600000, n.cpus, n.cpus * %[3]d * 1000000000, %[3]d * %[4]d, n.cpus * %[3]d * 6 * %[5]d, %[6]s, %[7]s FROM node n JOIN workload o ON o.node = n.id LEFT JOIN hour h ON h.workload = o.id AND h.minute = %[1]d GROUP BY n.id",
			minute, int64(traffic), seconds, int64(128<<30), joule, used(usage.NetworkRx), used(usage.NetworkTx)),
		fmt.Sprintf("INSERT OR IGNORE INTO hour (minute, workload, rev, present, rough, covered_ms, cpu, memory, energy_package, energy_error) SELECT %[1]d, w.id, 0, %[2]d, 0, 3600000, n.whole_cpu - %[3]s, n.whole_memory - %[4]s, n.whole_energy_package - %[5]s, (n.whole_energy_package - %[5]s) / 20 FROM workload w JOIN node_hour n ON n.node = w.node AND n.minute = %[1]d JOIN workload o ON o.node = w.node AND o.kind <> 'idle' JOIN hour h ON h.workload = o.id AND h.minute = %[1]d WHERE w.kind = 'idle' GROUP BY w.id",
			minute, int64(residuals), used(usage.CPU), used(usage.Memory), used(usage.EnergyPackage)))
}

// foldDays returns the statement that sums the hours of whole days into days.
func foldDays(prefix, key string, present usage.Set, first, today int64) string {
	cols := "present, covered_ms"
	sums := "max(present), sum(covered_ms)"
	add := func(name string) { cols, sums = cols+", "+name, sums+", sum("+name+")" }
	present.Each(func(r usage.Resource) { add(r.String()) }) // those of a node that are not present are 0
	if prefix != "" {
		cols, sums = cols+", cpus", sums+", max(cpus)"
		add("whole_cpu")
		add("whole_memory")
		add("whole_energy_package")
	}
	return fmt.Sprintf("INSERT OR IGNORE INTO %[1]sday (minute, %[2]s, rev, rough, %[3]s) SELECT minute / 1440 * 1440, %[2]s, 0, 0, %[4]s FROM %[1]shour WHERE minute >= %[5]d AND minute < %[6]d GROUP BY minute / 1440, %[2]s",
		prefix, key, cols, sums, first, today)
}
