package table

import (
	"slices"
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
)

// SourcesText formats downstream servers as a table for people. A lag is the age of the
// latest data of a server's most recent node.
func SourcesText(list []query.Source, now time.Time, s Style) string {
	if len(list) == 0 {
		return "no server below sends its rows here; mete token create --role upstream lets one\n"
	}
	var rows [][]string
	for _, b := range list {
		lag := s.absent()
		if !b.Through.IsZero() {
			lag = length(max(now.Sub(b.Through), 0))
		}
		rows = append(rows, []string{s.text(b.Name), s.text(b.ID), s.text(b.Cluster), s.text(b.State), s.time(b.Seen), s.time(b.Through), s.text(b.Epoch),
			lag, strconv.FormatUint(b.Pages, 10), strconv.Itoa(b.Nodes)})
	}
	return render(slices.Concat(textColumns("NAME", "SOURCE", "CLUSTER", "STATE", "SEEN", "BOOKED THROUGH", "EPOCH"), numberColumns("LAG", "PAGES", "NODES")), rows)
}
