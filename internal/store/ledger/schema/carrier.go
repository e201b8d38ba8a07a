package schema

// IsCarrier is the SQL condition that workload w only has what a container of a pod reserves, or the pod beyond its
// containers, as batch.Name.Reserves. A container whose name an agent does not believe has a slash in its key too, but
// also the path of its control group.
const IsCarrier = "(w.kind IN ('pod', 'container') AND w.key LIKE '%/%' AND w.path = '')"

// IsVolumesOf returns the SQL condition that a node is the pseudo-node of a cluster's volumes, and not a machine: see
// registry.VolumesNode. node is the name of its row in the statement. SQLite's LIKE would ignore case.
func IsVolumesOf(node string) string {
	return "(substr(" + node + ".machine_id, length(" + node + ".machine_id) - 7) = ' volumes')"
}
