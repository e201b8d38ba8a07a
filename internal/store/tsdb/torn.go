package tsdb

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/tsdb/wlog"
)

// walPage is the page size of the database's logs.
const walPage = 32 << 10

// truncateTornRecords removes an incomplete record at the end of each log, which a killed
// process leaves. Its windows are not booked, and agents send them again. The database would
// treat it as corruption.
func truncateTornRecords(dir string, log *slog.Logger) error {
	for _, name := range []string{"wal", "wbl"} {
		_, last, err := wlog.Segments(filepath.Join(dir, name))
		if err != nil || last < 0 {
			continue // the database reports the error
		}
		path := wlog.SegmentName(filepath.Join(dir, name), last)
		good, err := torn(path)
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		if good == never {
			continue
		}
		if err := os.Truncate(path, good); err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		log.Info("removed an incomplete record at the end of a log", "path", path, "offset", good)
	}
	return nil
}

// torn returns the offset of an incomplete record at the end of a segment, or never.
func torn(path string) (good int64, err error) {
	s, err := wlog.OpenReadSegment(path)
	if err != nil {
		return never, err
	}
	buf := wlog.NewSegmentBufReader(s)
	defer func() { err = errors.Join(err, buf.Close()) }()
	r := wlog.NewReader(buf)
	for r.Next() {
		good = r.Offset()
	}
	if r.Err() == nil {
		return never, nil
	}
	i, err := os.Stat(path)
	if err != nil || i.Size() <= good || (r.Offset()-1)/walPage < (i.Size()-1)/walPage {
		return never, err
	}
	return good, nil
}
