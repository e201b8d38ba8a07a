-- What the nodes of a cluster have added together on its latest day.
CREATE TABLE cluster_quota (
	cluster   text  NOT NULL PRIMARY KEY,
	day       {int} NOT NULL, -- since 1970, by the server's clock
	workloads {int} NOT NULL,
	bytes     {int} NOT NULL,
	exceeded  {int} NOT NULL, -- bits of what was refused, as in node_quota
	streams   {int} NOT NULL,
	batches   {int} NOT NULL,
	ranges    {int} NOT NULL,
	handovers {int} NOT NULL
) {keyed};
