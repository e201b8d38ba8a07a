package tsdb_test

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// After a restore of an older metrics backup beside a newer ledger, the missing samples are
// filled in and series and ledger agree.
func TestBackedUpMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { testBackedUp(t, newPair(t, 9*time.Hour)) })
}

func testBackedUp(t *testing.T, p *pair) {
	t.Helper()
	p.live(2 * time.Hour)
	p.late(20 * time.Minute)
	copied := filepath.Join(p.dir, "copy")
	if err := p.metrics.Backup(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	p.live(30 * time.Minute)
	p.checkEqual("after the backup", p.begin)
	p.close()
	replaceDir(t, copied, p.metricsDir())
	p.open()
	p.live(20 * time.Minute)
	if p.fill() == 0 {
		t.Error("no sample was filled in")
	}
	p.checkEqual("after the restore", p.begin)
	p.live(4 * time.Hour)
	if err := p.metrics.DB().Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.close()
	p.open()
	p.checkEqual("hours later", p.begin)
	if log := p.log.String(); strings.Contains(log, "level=ERROR") || strings.Contains(log, "set aside") {
		t.Error(log)
	}
}
