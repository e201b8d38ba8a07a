package metric

// The series of how measuring is doing, by cluster and node, which the server
// appends every quarter of a minute. Those of the server itself are as on its
// /metrics.
const (
	Up                   = "mete_node_up"
	LastWindow           = "mete_node_last_window_timestamp_seconds"
	Behind               = "mete_node_behind_seconds"
	Nested               = "mete_node_nested"
	GapSeconds           = "mete_node_gap_seconds_total"
	Violations           = "mete_conservation_violations_total"
	Missed               = "mete_node_missed_lives_total"
	NodeExpiry           = "mete_node_certificate_expiry_timestamp_seconds"
	ServerExpiry         = "mete_server_certificate_expiry_timestamp_seconds"
	NodeCap              = "mete_node_power_cap_watts"
	ClusterCap           = "mete_cluster_power_cap_watts"
	SpoolWaiting         = "mete_agent_spool_waiting_bytes"
	SpoolLimit           = "mete_agent_spool_limit_bytes"
	Certificate          = "certificate" // label of ServerExpiry: "server" or "authority"
	ServerCertificate    = "server"
	AuthorityCertificate = "authority"
)

// states describes them.
var states = []Metric{
	{Up, "gauge", "", "1 where the node is heard of, 0 where it is silent"},
	{LastWindow, "gauge", "seconds", "end of the latest window of the node that is booked, since 1970"},
	{Behind, "gauge", "seconds", "age of the latest window of the node that is booked"},
	{Nested, "gauge", "", "1 where the node is a guest of another one, which has its use within its own: sums of nodes leave it out"},
	{GapSeconds, "counter", "seconds", "length of all gaps of the node"},
	{Violations, "counter", "", "books of the node that did not add up, since the server started: always a defect"},
	{Missed, "counter", "", "births and deaths that the node's agent did not see, since the server started"},
	{NodeExpiry, "gauge", "seconds", "end of the certificate with which the node was heard of last, since 1970"},
	{ServerExpiry, "gauge", "seconds", "end of a certificate of the server, since 1970"},
	{NodeCap, "gauge", "watts", "power above which the node is not to draw, as it was set"},
	{ClusterCap, "gauge", "watts", "power above which all nodes of the cluster together are not to draw, as it was set"},
	{SpoolWaiting, "gauge", "bytes", "bytes in the agent's spool that the server has not booked, about, as the agent said with its latest batch"},
	{SpoolLimit, "gauge", "bytes", "size of the spool at which the agent gives up its oldest windows"},
}
