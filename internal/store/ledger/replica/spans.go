package replica

import (
	"fmt"
	"slices"

	"mete.dev/mete/internal/model/replica"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// heldLevel returns the level of the span that a row holds.
func heldLevel(v replica.Resolution, values []int64) replica.Resolution {
	switch {
	case v < replica.Day && values[schema.ColUncertainty]&schema.HoldsDay != 0:
		return replica.Day
	case v < replica.Hour && values[schema.ColUncertainty]&schema.HoldsHour != 0:
		return replica.Hour
	}
	return v
}

// heldCondition excludes rows, as r, that are part of a coarser span held by another row. Such rows
// are empty, or hold spilled amounts.
func heldCondition(s *schema.Layout, table string) string {
	if s.LevelOf(table) == schema.Days {
		return ""
	}
	return fmt.Sprintf(` AND NOT (r.present = 0 AND r.covered_ms = 0 AND EXISTS (SELECT 1 FROM %[1]s h WHERE h.%[2]s = r.%[2]s AND h.minute < r.minute
		AND h.minute IN (r.minute - r.minute %% %[3]d, r.minute - r.minute %% %[4]d)
		AND ((h.rough & %[6]d) <> 0 OR (h.rough & %[5]d) <> 0 AND h.minute = r.minute - r.minute %% %[3]d)))`,
		table, s.Key, schema.HourMinutes, schema.DayMinutes, schema.HoldsHour, schema.HoldsDay)
}

// addSpilled adds the spilled amounts to rows of minutes that hold a coarser span.
func (pb *pageBuilder) addSpilled() error {
	layouts := map[recordKind]*schema.Layout{kindNodeMinute: schema.NodeLayout, kindMinute: schema.UsageLayout}
	for _, i := range pb.records {
		s := layouts[i.at.kind]
		if s == nil || i.level == replica.Minute || !slices.Contains(i.values, schema.MaxMinuteAmount) && !slices.Contains(i.values, -schema.MaxMinuteAmount) {
			continue
		}
		values := make([]int64, len(s.Columns))
		dest := []any{new(int64), new(int64)}
		for c := range values {
			dest = append(dest, &values[c])
		}
		err := db.Each(pb.v.Ctx, pb.v.SQL, func(scan func(...any) error) error {
			err := scan(dest...)
			schema.NewPending(s).AddSaturating(i.values, values)
			return err
		}, fmt.Sprintf("SELECT %s FROM %s WHERE %s = $1 AND minute > $2 AND minute < $3 AND (rough & %d) <> 0", s.ColumnList(), s.MinuteTable(schema.DayOf(i.at.a)), s.Key, schema.HoldsHour|schema.HoldsDay),
			i.at.b, i.at.a, i.at.a+i.level.Minutes())
		if err != nil {
			return pb.v.DB.Fault(err)
		}
	}
	return nil
}
