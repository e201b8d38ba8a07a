-- Time of nodes that is booked and that the time series database may lack samples of:
-- it rebuilds them from minutes and removes the row.
CREATE TABLE unsampled (
	node    {int} NOT NULL PRIMARY KEY REFERENCES node (id),
	from_ns {int} NOT NULL,
	to_ns   {int} NOT NULL
) {keyed};
