package schema

// IsCarrier is the SQL condition that workload w only has what a container of a pod reserves, or the pod beyond its
// containers. Its key is the UID of the pod, a slash, and the name of the container; no other key of these kinds has a slash.
const IsCarrier = "(w.kind IN ('pod', 'container') AND w.key LIKE '%/%')"

// IsVolumes is the SQL condition that node n is the pseudo-node of a cluster's volumes, and not a machine: see
// registry.VolumesNode. SQLite's LIKE would ignore case.
const IsVolumes = "(substr(n.machine_id, length(n.machine_id) - 7) = ' volumes')"

// ReservedSuffix ends the names of carriers.
const ReservedSuffix = " (reserved)"
