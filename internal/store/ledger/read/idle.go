package read

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mete.dev/mete/internal/attribute/idle"
	"mete.dev/mete/internal/model/power"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
	"mete.dev/mete/internal/store/ledger/schema"
)

// computeGroups returns the groups of all ranges in order, with idle energy divided by the query's
// policy. Groups that q.Top leaves out may be added to a.Other. Of those beyond q.Limit it may return only
// the worst qualities.
func (s *selection) computeGroups(ranges []schema.Range, a *query.Answer) (groups []query.Group, others usage.Qualities, err error) {
	if s.idle == power.None {
		sums, err := s.sumGroups(ranges)
		if err != nil {
			return nil, others, s.rd.db.Fault(err)
		}
		found, err := s.unusedOfGroups(ranges, sums.present())
		if err != nil {
			return nil, others, err
		}
		for name, u := range found {
			sums.all[name].unused = u
		}
		if t := s.q.Top; t != nil && (a.AveragedOver > 0 || t.Limit == 0) {
			groups, others = sums.top(t, a, s.q.Limit)
		} else {
			groups, others = sums.sorted(s.q.Limit)
		}
		return groups, others, nil
	}
	groups, err = s.idleGroups(ranges)
	return groups, others, err
}

// idleGroups is computeGroups for a policy that divides idle energy.
func (s *selection) idleGroups(ranges []schema.Range) ([]query.Group, error) {
	ends := []query.Dimension{query.ByNode, query.ByKind}
	fine := *s.q
	fine.By = slices.Concat(s.q.By, ends)
	of, err := s.sameNesting(&fine)
	if err != nil {
		return nil, err
	}
	all := of
	if s.isFiltered() {
		// Workloads that the filters exclude have their share too.
		all, err = s.sameNesting(&query.Query{By: ends, Resources: s.want, Scope: query.Scope{All: s.q.Scope.All, Clusters: s.q.Scope.Clusters}})
		if err != nil {
			return nil, err
		}
	}
	sums, err := of.sumGroups(ranges)
	if err != nil {
		return nil, s.rd.db.Fault(err)
	}
	d := &idleDivision{of: of, all: all, sums: sums, Divider: idle.Divider{Policy: s.idle}, quality: map[string]usage.Quality{}, shares: map[*group]*idle.Share{}}
	if err := d.divide(s.idleUnits(ranges)); err != nil {
		return nil, s.rd.db.Fault(err)
	}
	groups := idle.MergeNodes(func(yield func(*query.Group) bool) {
		for _, g := range sums.all {
			out := sums.toGroup(g)
			node, kind := nodeAndKind(g.keys)
			var share idle.Share
			if found := d.shares[g]; found != nil {
				share = *found
			}
			if idle.Put(&out.Usage, kind, share, d.quality[node]); !yield(&out) {
				return
			}
		}
	})
	found, err := s.unusedOfGroups(ranges, sums.present())
	if err != nil {
		return nil, err
	}
	for i := range groups {
		if u := found[groupName(groups[i].Keys)]; u != nil {
			groups[i].Usage.Unused = *u
		}
	}
	slices.SortFunc(groups, func(a, b query.Group) int { return compareUse(&a, &b) })
	return groups, nil
}

// sameNesting returns the selection of another query by node, with the guests of this one.
func (s *selection) sameNesting(q *query.Query) (*selection, error) {
	other, err := s.rd.newSelection(s.v, q)
	if err != nil {
		return nil, err
	}
	other.nesting = s.nesting
	return other, nil
}

// idleUnits returns the spans for which idle energy is divided: the hours of ranges, from hours or
// minutes, and days where hours are no longer kept.
func (s *selection) idleUnits(ranges []schema.Range) (units []schema.Range) {
	for _, p := range ranges {
		switch p.Level {
		case schema.Days:
			for _, day := range p.Split() {
				if day.From < s.v.HourFloor {
					units = append(units, day)
					continue
				}
				day.Level = schema.Hours
				units = append(units, day.Split()...)
			}
		case schema.Hours:
			units = append(units, p.Split()...)
		default:
			for at := p.From; at < p.To; {
				end := min(p.To, at-at%schema.HourMinutes+schema.HourMinutes)
				units = append(units, schema.Range{Level: p.Level, From: at, To: end})
				at = end
			}
		}
	}
	return units
}

// idleResources are the resources from which idle energy is divided.
var idleResources = usage.SetOf(usage.Energies[:]...) | usage.SetOf(usage.CPU, usage.EnergyError)

// An idleDivision divides the idle energy of machines among the groups of a query, in one unit of
// time after another.
type idleDivision struct {
	of, all *selection // the rows that the query sums, and all rows of the machines
	sums    *groupSet  // of the groups
	idle.Divider
	quality map[string]usage.Quality // of idle energy, by machine
	shares  map[*group]*idle.Share
	rows    []idleRow // of the present unit
}

// An idleRow is what a workload used in a unit of time.
type idleRow struct {
	workload       int64
	machine, kind  string
	group          *group // nil if the query excludes it
	present        usage.Set
	uncertainty    usage.Uncertainty
	cpu, coveredMS int64 // ns, ms
	share          idle.Share
}

// nodeAndKind returns the last two keys of a group.
func nodeAndKind(keys []string) (node, kind string) { return keys[len(keys)-2], keys[len(keys)-1] }

// divide divides the idle energy of all units.
func (d *idleDivision) divide(units []schema.Range) error {
	if d.of.nesting.guestsOnly && len(d.of.nesting.covered) == 0 {
		return nil
	}
	if d.of.rd.db.IsSQLite() {
		return d.readBlocks(units)
	}
	// Adjacent units of one level are one query.
	for i := 0; i < len(units); {
		p, j := units[i], i+1
		for ; j < len(units) && units[j].Level == p.Level && units[j].From == p.To && units[j].Table(schema.UsageLayout) == p.Table(schema.UsageLayout); j++ {
			p.To = units[j].To
		}
		if err := d.readRows(p); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// readBlocks divides the idle energy of units, from blocks.
func (d *idleDivision) readBlocks(units []schema.Range) error {
	groups, err := d.of.newAggregation(d.sums)
	if err != nil {
		return err
	}
	machines := groups
	if d.all != d.of {
		if machines, err = d.all.newAggregation(newGroups(d.all.want)); err != nil {
			return err
		}
	}
	add := func(b *block) error {
		if err := groups.findGroups(b); err != nil {
			return err
		}
		if machines != groups {
			if err := machines.findGroups(b); err != nil {
				return err
			}
		}
		for i, key := range b.keys {
			w, _ := schema.SplitKey(key)
			of := machines.rowGroups[i]
			if of == nil {
				continue
			}
			r := idleRow{workload: w, group: groups.rowGroups[i], present: usage.Set(b.value(blockPresent, i)), uncertainty: b.uncertainty(i),
				cpu: b.value(blockAmounts+int(usage.CPU), i), coveredMS: b.value(blockCovered, i)}
			if r.machine, r.kind = nodeAndKind(of.keys); r.kind == idle.Kind {
				for _, e := range usage.Energies {
					r.share.Energy = r.share.Energy.Add(b.value(blockAmounts+int(e), i))
				}
				r.share.Error = r.share.Error.Add(b.value(blockAmounts+int(usage.EnergyError), i))
			}
			d.rows = append(d.rows, r)
		}
		return nil
	}
	scan := func(of []schema.Range, use func(*block) error) error {
		return d.of.rd.scanBlocks(d.of.v, usageBlocks, idleResources, of, true, nil, use)
	}
	// Blocks come in any order. One of an hour is a unit; those of minutes are parts of one.
	var whole []schema.Range
	for _, p := range units {
		if p.Level != schema.Minutes {
			whole = append(whole, p)
			continue
		}
		if err := scan([]schema.Range{p}, add); err != nil {
			return err
		}
		d.divideUnit()
	}
	return scan(whole, func(b *block) error {
		err := add(b)
		d.divideUnit()
		return err
	})
}

// readRows divides the idle energy of adjacent units, from rows that the database sorts.
func (d *idleDivision) readRows(p schema.Range) error {
	s := d.of
	width := max(p.Level.Width(), schema.HourMinutes)
	args := slices.Clone(s.args)
	cols := append(slices.Clone(s.keys), "u.minute - u.minute % "+fmt.Sprint(width), "w.id", "n.id", "w.kind",
		"CASE WHEN true"+s.where+" THEN 1 ELSE 0 END", "u.present", "u.rough", "u.rough_high", "u.covered_ms", "u.cpu", "u.energy_error")
	for _, r := range usage.Energies {
		cols = append(cols, "u."+r.String())
	}
	keys := make([]string, len(s.keys))
	var into []any
	for i := range keys {
		into = append(into, &keys[i])
	}
	var at, node, matches, present, off int64
	var energies [len(usage.Energies)]int64
	var r idleRow
	into = append(into, &at, &r.workload, &node, &r.kind, &matches, &present, &r.uncertainty[0], &r.uncertainty[1], &r.coveredMS, &r.cpu, &off)
	for i := range energies {
		into = append(into, &energies[i])
	}
	unit0 := int64(-1)
	text := fmt.Sprintf("SELECT %s FROM %s u JOIN workload w ON w.id = %s JOIN node n ON n.id = w.node%s WHERE u.minute >= $1 AND u.minute < $2 AND %s%s%s ORDER BY %d, w.id",
		strings.Join(cols, ", "), p.Table(schema.UsageLayout), schema.IDOf("u.workload"), s.joins, schema.HasContent("u"), clusterCondition(&args, d.all.q.Scope), s.outsideCondition("n.id", "u.workload"), len(keys)+1)
	err := eachInRange(s.v, p, args, func(scan func(...any) error) error {
		if err := scan(into...); err != nil {
			return err
		}
		if at != unit0 {
			d.divideUnit()
			unit0 = at
		}
		row := r
		row.machine, row.present = s.nodeNames[node], usage.Set(present)
		if matches != 0 {
			row.group = s.groupOf(d.sums, keys, node)
		}
		if r.kind == idle.Kind {
			for _, e := range energies {
				row.share.Energy = row.share.Energy.Add(e)
			}
			row.share.Error = unit.Sum{}.Add(off)
		}
		d.rows = append(d.rows, row)
		return nil
	}, s.rd.db.Expand(text))
	d.divideUnit()
	return err
}

// An idleMachine is a machine in a unit of time.
type idleMachine struct {
	whole     idle.Share
	quality   usage.Quality
	own       []*idleRow // rows of the machine's idle energy
	claims    []idle.Claim
	claimants []*group
}

// divideUnit divides the idle energy of the collected rows, and drops them.
func (d *idleDivision) divideUnit() {
	rows := d.rows
	d.rows = d.rows[:0]
	slices.SortStableFunc(rows, func(a, b idleRow) int { return cmp.Compare(a.workload, b.workload) })
	// A workload may have several rows, of minutes.
	n := 0
	for i := range rows {
		if r := &rows[i]; n > 0 && rows[n-1].workload == r.workload {
			to := &rows[n-1]
			to.present, to.uncertainty = to.present|r.present, to.uncertainty.Or(r.uncertainty)
			to.cpu, to.coveredMS = to.cpu+r.cpu, to.coveredMS+r.coveredMS
			to.share.Add(r.share)
			continue
		}
		rows[n] = rows[i]
		n++
	}
	machines := map[string]*idleMachine{}
	for i := range rows[:n] {
		r := &rows[i]
		m := machines[r.machine]
		if m == nil {
			m = &idleMachine{}
			machines[r.machine] = m
		}
		switch {
		case r.kind == idle.Kind:
			qualities := r.uncertainty.Qualities(r.present)
			for _, e := range usage.Energies {
				if r.present.Has(e) {
					m.quality = max(m.quality, qualities.Get(e))
				}
			}
			m.whole.Add(r.share)
			m.own = append(m.own, r)
		case idle.Claims(r.kind, r.present):
			m.claims, m.claimants = append(m.claims, idle.Claim{CPU: r.cpu, Covered: r.coveredMS}), append(m.claimants, r.group)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		m := machines[name]
		if m.quality == usage.Absent {
			continue
		}
		d.quality[name] = max(d.quality[name], m.quality)
		shares := d.Divide(m.whole, m.claims)
		for i, s := range shares {
			d.give(m.claimants[i], s)
		}
		if shares == nil {
			for _, r := range m.own {
				d.give(r.group, r.share)
			}
		}
	}
}

// give adds a share to a group.
func (d *idleDivision) give(g *group, s idle.Share) {
	if g == nil || s == (idle.Share{}) {
		return
	}
	if d.shares[g] == nil {
		d.shares[g] = &idle.Share{}
	}
	d.shares[g].Add(s)
}

// isFiltered reports whether the query excludes workloads of its nodes.
func (s *selection) isFiltered() bool {
	return len(s.q.Where) > 0 || s.q.OmitOwn || !s.q.Scope.All && len(s.q.Scope.Projects) > 0
}

// judgeEnergies derives the quality of whole energies from their parts: the whole is modelled if a
// part is, and absent if no part has it. An apportioned part comes from a measured whole.
func judgeEnergies(groups []query.Group, rest usage.Qualities, whole *query.Total) {
	for _, r := range usage.Energies {
		worst := rest.Get(r)
		for i := range groups {
			if u := &groups[i].Usage; u.Present.Has(r) {
				worst = max(worst, u.Quality.Get(r))
			}
		}
		switch worst {
		case usage.Absent:
			whole.Present &^= usage.SetOf(r)
			whole.Quality.Set(r, usage.Absent)
		case usage.Modelled:
			whole.Quality.Worsen(r, usage.Modelled)
		}
	}
}
