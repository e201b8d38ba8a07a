package schema

// IsCarrier is the SQL condition that workload w only has what a container of a pod reserves, or the pod beyond its
// containers. Its key is the UID of the pod, a slash, and the name of the container; no other key of these kinds has a slash.
const IsCarrier = "(w.kind IN ('pod', 'container') AND w.key LIKE '%/%')"

// ReservedSuffix ends the names of carriers.
const ReservedSuffix = " (reserved)"
