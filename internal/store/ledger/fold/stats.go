package fold

import (
	"context"
	"time"

	"mete.dev/mete/internal/store/ledger/db"
)

// Stats are statistics of a ledger.
type Stats struct {
	Rev        int64         // of the latest transaction
	Hours      time.Time     // end of the minutes folded into hours; zero if none
	Days       time.Time     // end of the hours folded into days; zero if none
	Rows       int64         // folded rows of minutes that are kept
	LatestRows int64         // of these, rows of the latest day
	Bytes      int64         // of the database
	Folding    time.Duration // how long folding held the writer since Open
	Slices     int64         // transactions of folding since Open
}

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

// fromMinute returns a mark as a time; 0 is the zero time.
func fromMinute(m int64) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return time.Unix(m*60, 0).UTC()
}
