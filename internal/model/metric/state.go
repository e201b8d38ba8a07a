package metric

// Series of the state of measuring, by cluster and node, which the server appends every 15 seconds.
// Those of the server itself are as on its /metrics.
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

var states = []Metric{
	{Up, "gauge", "", "1 if the node sends, 0 if it is silent"},
	{LastWindow, "gauge", "seconds", "end of the node's latest booked window, since 1970"},
	{Behind, "gauge", "seconds", "age of the node's latest booked window"},
	{Nested, "gauge", "", "1 if the node is a guest of another one, whose use includes its own: exclude it from sums of nodes"},
	{GapSeconds, "counter", "seconds", "length of all gaps of the node"},
	{Violations, "counter", "", "failed conservation checks of the node, since the server started: always a bug"},
	{Missed, "counter", "", "births and deaths that the node's agent missed, since the server started"},
	{NodeExpiry, "gauge", "seconds", "end of the certificate that the node used last, since 1970"},
	{ServerExpiry, "gauge", "seconds", "end of a certificate of the server, since 1970"},
	{NodeCap, "gauge", "watts", "configured power limit of the node"},
	{ClusterCap, "gauge", "watts", "configured power limit of all nodes of the cluster together"},
	{SpoolWaiting, "gauge", "bytes", "approximate bytes in the agent's spool that the server has not booked, as of its latest batch"},
	{SpoolLimit, "gauge", "bytes", "size of the spool at which the agent drops its oldest windows"},
}
