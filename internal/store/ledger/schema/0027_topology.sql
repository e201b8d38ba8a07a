-- Where the addresses of a Kubernetes cluster are: the nodes, their zones and their prefixes, as its API server has them.
CREATE TABLE topology (
	cluster text  NOT NULL PRIMARY KEY,
	epoch   {int} NOT NULL, -- rises whenever the row is written, also in a ledger that was restored from a backup
	content text  NOT NULL  -- an object of JSON, by node
) {strict};
