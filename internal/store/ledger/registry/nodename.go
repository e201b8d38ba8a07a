package registry

import (
	"mete.dev/mete/internal/model/registry"
	"mete.dev/mete/internal/store/ledger/db"
	"mete.dev/mete/internal/store/ledger/schema"
)

// shortIDLen is how many characters of a node's id distinguish it from a node of the same name. The
// end of a ULID is random, its start is the time.
const shortIDLen = 6

// uniqueName returns the name under which the ledger knows a node. Series, alerts and queries select
// nodes by cluster and name, so only the first node of a host name has the plain name, and a later
// one is NAME~ID, with the end of its id. A node keeps its name while its host name and cluster
// stay the same, even if the plain name becomes free. Revoking a node frees its name for others.
//
// The node of a machine's standalone jobs has the name of its machine: the two are separate sets.
func uniqueName(t *db.Tx, n *registry.Node) (string, error) {
	plain, id := schema.Clean(n.Name), schema.Clean(n.ID)
	if plain == "" {
		return "", nil
	}
	short, long := plain+"~"+id[max(0, len(id)-shortIDLen):], plain+"~"+id
	taken, kept := map[string]bool{}, ""
	err := db.Each(t.Ctx, t.SQL, func(scan func(...any) error) error {
		var other, name, machine string
		if err := scan(&other, &name, &machine); err != nil {
			return err
		}
		switch {
		case other == id:
			kept = name
		case registry.IsJobsMachine(machine) == registry.IsJobsMachine(n.MachineID):
			taken[name] = true
		}
		return nil
	}, "SELECT node_id, name, machine_id FROM node WHERE cluster = $1 AND source = 0 AND name IN ($2, $3, $4) AND (revoked_ns = 0 OR node_id = $5)",
		schema.Clean(n.Cluster), plain, short, long, id)
	if err != nil {
		return "", t.DB.Fault(err)
	}
	if kept != "" && !taken[kept] {
		return kept, nil
	}
	for _, name := range []string{plain, short} {
		if !taken[name] {
			return name, nil
		}
	}
	return long, nil
}
