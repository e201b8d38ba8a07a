package v1

import "mete.dev/mete/internal/model/live"

// DocumentTypes returns values of the types that answers are written from, by the names
// of their queries, for the description of the API. The elements of lists come from
// [ElementTypes].
func DocumentTypes() map[string]any {
	return map[string]any{"usage": Usage{}, "connections": Connections{}, "jobs": Jobs{}, "energy": Energy{}, "health": Health{}, "self": Self{}, "summary": live.Summary{}}
}

// ElementTypes returns values of the types of elements, by the names of their lists.
func ElementTypes() map[string]Element {
	all := map[string]Element{"rates": live.NodeRates{}} // the key of that list is the one of nodes
	for _, e := range []Element{Node{}, Source{}, Workload{}, Run{}, Gap{}, Uptime{}, VM{}, Cluster{}, Dimension{}, Stream{}, Alert{}, Silence{}} {
		all[e.ListKey()] = e
	}
	return all
}
