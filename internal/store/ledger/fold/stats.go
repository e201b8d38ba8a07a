package fold

import (
	"context"
	"time"

	"mete.dev/mete/internal/store/ledger/db"
)

// Stats is how a ledger is doing.
type Stats struct {
	Rev        int64         // of the latest transaction
	Hours      time.Time     // up to when minutes are folded into hours; zero is none
	Days       time.Time     // the same of hours into days
	Rows       int64         // of minutes, that are kept and folded
	LatestRows int64         // those of the latest day
	Bytes      int64         // of the database
	Folding    time.Duration // for how long folding held the writer, since the ledger was opened
	Slices     int64         // in how many transactions
}

// Stats returns how the ledger is doing.
func (f *Folder) Stats(ctx context.Context) (s Stats, err error) {
	err = f.db.View(ctx, func(v *db.View) error {
		s = Stats{Hours: fromMinute(v.Hour), Days: fromMinute(v.Day)}
		err := v.SQL.QueryRowContext(ctx, `SELECT rev, (SELECT CAST(coalesce(sum(rows), 0) AS bigint) FROM kept),
			(SELECT coalesce(max(rows), 0) FROM kept WHERE day = (SELECT max(day) FROM kept)) FROM counter WHERE id = 1`).
			Scan(&s.Rev, &s.Rows, &s.LatestRows)
		if err != nil {
			return f.db.Fault(err)
		}
		s.Bytes, err = v.Size()
		return err
	})
	s.Folding, s.Slices = time.Duration(f.heldNS.Load()), f.sliceCount.Load()
	return s, db.Wrap(err, "statistics")
}

// fromMinute is a mark as a time; 0 is none.
func fromMinute(m int64) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Unix(m*60, 0).UTC()
}
