-- What nodes have added to the ledger permanently on their latest day.
CREATE TABLE node_quota (
	node      {int} NOT NULL PRIMARY KEY REFERENCES node (id),
	day       {int} NOT NULL, -- since 1970, by the server's clock
	workloads {int} NOT NULL, -- new ones
	bytes     {int} NOT NULL, -- of names, labels and other texts
	exceeded  {int} NOT NULL  -- bits of what was refused: 1 workloads, 2 bytes
) {keyed};
