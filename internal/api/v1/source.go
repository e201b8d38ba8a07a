package v1

import (
	"strconv"
	"time"

	"mete.dev/mete/internal/model/query"
)

type sourceJSON struct {
	Source   string     `json:"source" doc:"id"`
	Name     string     `json:"name"`
	Cluster  string     `json:"cluster"`
	State    string     `json:"state" doc:"as that of nodes"`
	Nodes    int        `json:"nodes" doc:"that it tells of"`
	Pages    uint64     `json:"pages" doc:"that were taken of it"`
	Epoch    string     `json:"epoch" doc:"of its ledger, as far as it was taken"`
	Enrolled *time.Time `json:"enrolled_at"`
	Seen     *time.Time `json:"seen_at" doc:"when a page of it was taken last"`
	Through  *time.Time `json:"booked_through" doc:"up to when the furthest of its nodes is booked there"`
	Revoked  *time.Time `json:"revoked_at" doc:"null where it is not"`
}

// SourcesJSON writes servers below under the key sources.
func SourcesJSON(list []query.Source) []byte {
	return marshalList("sources", mapSlice(list, func(b query.Source) sourceJSON {
		return sourceJSON{b.ID, b.Name, b.Cluster, b.State, b.Nodes, b.Pages, b.Epoch, timeOrNil(b.Enrolled), timeOrNil(b.Seen), timeOrNil(b.Through), timeOrNil(b.Revoked)}
	}))
}

// ParseSources reads what SourcesJSON wrote.
func ParseSources(body []byte) ([]query.Source, error) {
	list, err := unmarshalList[sourceJSON]("sources", body)
	return mapSlice(list, func(b sourceJSON) query.Source {
		return query.Source{ID: b.Source, Name: b.Name, Cluster: b.Cluster, State: b.State, Nodes: b.Nodes, Pages: b.Pages, Epoch: b.Epoch,
			Enrolled: timeOrZero(b.Enrolled), Seen: timeOrZero(b.Seen), Through: timeOrZero(b.Through), Revoked: timeOrZero(b.Revoked)}
	}), err
}

// SourcesCSV writes servers below with the keys of the JSON form.
func SourcesCSV(list []query.Source) []byte {
	rows := [][]string{{"source", "name", "cluster", "state", "nodes", "pages", "epoch", "enrolled_at", "seen_at", "booked_through", "revoked_at"}}
	for _, b := range list {
		rows = append(rows, []string{b.ID, b.Name, b.Cluster, b.State, strconv.Itoa(b.Nodes), strconv.FormatUint(b.Pages, 10), b.Epoch,
			formatTime(b.Enrolled), formatTime(b.Seen), formatTime(b.Through), formatTime(b.Revoked)})
	}
	return writeCSV(rows)
}
