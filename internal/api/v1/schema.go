package v1

import (
	"cmp"
	"strings"

	"mete.dev/mete/internal/model/live"
	"mete.dev/mete/internal/model/usage"
)

// Page is what a list says of the next one.
type Page struct {
	Next string `json:"next_cursor,omitempty" doc:"where the next page begins: give it as cursor; absent on the last page"`
}

// The lists, as their JSON has them.
type (
	nodesJSON struct {
		Nodes []nodeJSON `json:"nodes" nullable:"false"`
		Page
	}
	sourcesJSON struct {
		Sources []sourceJSON `json:"sources" nullable:"false"`
		Page
	}
	workloadsJSON struct {
		Workloads []workloadJSON `json:"workloads" nullable:"false"`
		Page
	}
	gapsJSON struct {
		Gaps []gapJSON `json:"gaps" nullable:"false"`
		Page
	}
	vmsJSON struct {
		VMs []vmJSON `json:"vms" nullable:"false"`
		Page
	}
	ratesJSON struct {
		Nodes []live.NodeRates `json:"nodes" nullable:"false"`
	}
	clustersJSON struct {
		Clusters []clusterJSON `json:"clusters" nullable:"false"`
		Page
	}
	streamsJSON struct {
		Streams []streamJSON `json:"streams" nullable:"false"`
		Page
	}
	alertsJSON struct {
		Alerts []alertJSON `json:"alerts" nullable:"false"`
		Page
	}
)

// DocumentTypes are values of the types that answers are written from, by what they
// are about, for who describes them. Those about usage and jobs have keys that
// depend on the question: see [Figures].
func DocumentTypes() map[string]any {
	return map[string]any{
		"nodes": nodesJSON{}, "sources": sourcesJSON{}, "workloads": workloadsJSON{}, "gaps": gapsJSON{}, "vms": vmsJSON{}, "rates": ratesJSON{},
		"summary": live.Summary{}, "clusters": clustersJSON{}, "streams": streamsJSON{}, "alerts": alertsJSON{}, "energy": energyJSON{}, "health": healthJSON{},
		"self": selfJSON{},
	}
}

// A Figure describes one figure of a group.
type Figure struct {
	Key         string // in JSON and CSV, with its unit
	Help        string
	LargeAsText bool // an integer, which is a string above 2^53
}

// Figures describes all figures, in the order in which they are written.
func Figures() []Figure {
	var out []Figure
	for i := range figures {
		f := &figures[i]
		out = append(out, Figure{f.key, f.help(), isInteger(f.unit)})
	}
	return out
}

// help says what a figure is.
func (f *figure) help() string {
	switch f.kind {
	case LevelAverage:
		return f.res.Detail().Help + ", as the average over the time that was measured, in bytes"
	case EnergySum:
		return "energy of all domains, without what was divided of idle machines, in joules"
	case idleEnergy:
		return "energy of idle machines that was divided to it, in joules; null where none was divided"
	case idleEnergyError:
		return "by how much that may be off, in joules"
	case PowerAverage:
		return "all energy over the time that was measured, in watts"
	}
	return f.res.Detail().Help + ", in " + cmp.Or(f.unit.Base(), "units")
}

// Qualities are the words for how a figure came about.
func Qualities() (words []string) {
	for q := usage.Absent; q <= usage.Modelled; q++ {
		words = append(words, q.String())
	}
	return words
}

// AddNextCursor adds to a list in JSON where the next page of it begins: "" is nowhere.
func AddNextCursor(list []byte, next string) []byte {
	const end = "\n]}\n"
	body, ok := strings.CutSuffix(string(list), end)
	if next == "" || !ok {
		return list
	}
	return append([]byte(body+"\n],\"next_cursor\":"), append(marshal(next), "}\n"...)...)
}
