package v1_test

import (
	"fmt"
	"testing"
	"time"

	"mete.dev/mete/internal/api/v1"
	"mete.dev/mete/internal/model/query"
	"mete.dev/mete/internal/model/unit"
	"mete.dev/mete/internal/model/usage"
)

// manyGroups is an answer with 20,000 groups, twice as many as a server gives.
func manyGroups() *query.Answer {
	a := &query.Answer{From: noon.Add(-time.Hour), To: noon, AveragedOver: time.Hour, By: []query.Dimension{query.ByJob, query.ByNode}}
	for i := range 20_000 {
		g := query.Group{Keys: []string{fmt.Sprint("job-", i), fmt.Sprint("node-", i%100)}, Nodes: 1, First: noon.Add(-time.Hour), Last: noon}
		for r := usage.Resource(1); r < usage.Limit; r++ {
			if r%3 != 0 {
				put(&g.Usage, r, usage.Measured, int64(i)*1_234_567+int64(r))
			}
		}
		g.Usage.Covered = unit.Sum{}.Add(int64(time.Hour))
		a.Groups = append(a.Groups, g)
	}
	return a
}

// The encoding of the largest answers: a server does it while others wait.
func BenchmarkUsageJSON(b *testing.B) {
	a := manyGroups()
	for b.Loop() {
		b.SetBytes(int64(len(v1.JSON(v1.UsageOf(a, nil)))))
	}
}

func BenchmarkUsageCSV(b *testing.B) {
	a := manyGroups()
	for b.Loop() {
		b.SetBytes(int64(len(v1.CSV(v1.UsageOf(a, nil)))))
	}
}
