package v1

import (
	"bytes"
	"slices"
	"strings"
	"time"

	"mete.dev/mete/internal/model/query"
)

// JobsBy are the dimensions of the answer that [JobsJSON] writes.
var JobsBy = []query.Dimension{query.ByCluster, query.ByJob, query.ByNamespace, query.ByUser, query.ByProject}

// KeepJobs leaves of an answer by [JobsBy] what jobs used, by cluster and name.
func KeepJobs(a *query.Answer) {
	a.Groups = slices.DeleteFunc(a.Groups, func(g query.Group) bool {
		// What no job caused stands under its own name in all dimensions.
		return g.Keys[1] == "" || g.Keys[2] == g.Keys[1] && ResidualKind(a.By[1:], g.Keys[1:]) != ""
	})
	slices.SortFunc(a.Groups, func(x, y query.Group) int { return strings.Compare(JobKey(&x), JobKey(&y)) })
}

// JobKey is that by which jobs have an order.
func JobKey(g *query.Group) string { return strings.Join(g.Keys, "\x00") }

// JobsJSON writes an answer's groups under the key jobs, with these figures alone;
// nil is all.
func JobsJSON(a *query.Answer, keys []string) []byte {
	var b bytes.Buffer
	h := marshal(struct {
		From time.Time `json:"from"`
		To   time.Time `json:"to"`
	}{a.From.UTC(), a.To.UTC()})
	b.Write(h[:len(h)-1])
	b.WriteString(",\"averages_over_seconds\":" + string(seconds(a.AveragedOver)) + ",\"jobs\":[")
	writeGroups(&b, a, a.Groups, figuresOf(keys))
	b.WriteString("\n]}\n")
	return b.Bytes()
}
