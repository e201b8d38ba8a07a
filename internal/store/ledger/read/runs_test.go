package read_test

import (
	"slices"
	"testing"

	"mete.dev/mete/internal/model/batch"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/workload"
	"mete.dev/mete/internal/store/ledger/schema"
	"mete.dev/mete/internal/testkit/ledgertest"
)

// TestRunsWithoutStart checks that of runs without a reported start, such as those of Slurm, the one that
// was booked last comes first, also over pages, whatever their names are.
func TestRunsWithoutStart(t *testing.T) { checkRunsWithoutStart(t, ledgertest.SQLite(t)) }

func TestRunsWithoutStartPostgreSQL(t *testing.T) {
	checkRunsWithoutStart(t, ledgertest.PostgreSQL(t))
}

func checkRunsWithoutStart(t *testing.T, dsn string) {
	t.Helper()
	l := ledgertest.Open(t, dsn)
	f := ledgertest.Fill(t, l)
	m := ledgertest.Day.Unix()/60 + 4*schema.DayMinutes
	want := []string{"9", "10", "1"}
	e := f.Entry("host", "b1", m)
	for _, name := range slices.Backward(want) {
		n := batch.Name{ID: workload.NewID("host", workload.SlurmJob, name), Kind: workload.SlurmJob, Key: name, Name: name}
		row := e.Minutes[0]
		row.Workload, _ = workload.ShortIDOf(n.ID)
		e.Names, e.Minutes = append(e.Names, n), append(e.Minutes, row)
	}
	f.Book(e)
	q := query.RunQuery{Query: query.Query{From: e.Through.AddDate(0, 0, -1), To: e.Through, Scope: query.Scope{All: true}, Limit: 1}}
	var got []string
	for {
		page, err := l.Runs(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		got, q.After = append(got, page[0].Name.Name), page[0].RunKey()
	}
	if !slices.Equal(got, want) {
		t.Errorf("runs %v, want %v", got, want)
	}
}
