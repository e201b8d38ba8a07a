-- The hosts that nodes of virtual machines were within, as their shares show: a node and a
-- series of shares of which one was equal.
CREATE TABLE nested_series (
	node   {int} NOT NULL REFERENCES node (id), -- the guest
	series {int} NOT NULL,
	host   {int} NOT NULL REFERENCES node (id),
	PRIMARY KEY (node, series)
) {keyed};
CREATE INDEX nested_series_host ON nested_series (host);
CREATE INDEX share_series_host ON share_series (host, last_ns);
CREATE INDEX nested_series_series ON nested_series (series);

-- What the host said it gave and what its rows of the guest had, uJ; and the time from which
-- rows can be within it.
ALTER TABLE share_series ADD COLUMN given {int} NOT NULL DEFAULT 0;
ALTER TABLE share_series ADD COLUMN held {int} NOT NULL DEFAULT 0;
ALTER TABLE share_series ADD COLUMN since_ns {int} NOT NULL DEFAULT 0;

-- The days of which rows of a node are within another one.
CREATE TABLE within_day (
	node     {int} NOT NULL REFERENCES node (id),
	minute   {int} NOT NULL, -- the day's first
	host     {int} NOT NULL, -- the node itself: not known here
	workload {int} NOT NULL, -- what the node is there, 0: not known here
	whole    {int} NOT NULL, -- 1: all rows of the day are, as earlier versions had it
	rev      {int} NOT NULL,
	PRIMARY KEY (node, minute, host)
) {keyed};
CREATE INDEX within_day_minute ON within_day (minute);
CREATE INDEX within_day_told ON within_day (rev, minute, host, node);

-- Earlier versions nested whole days. Their rows are moved by the program.
INSERT INTO within_day (node, minute, host, workload, whole, rev)
	SELECT node, minute, CASE WHEN host = 0 THEN node ELSE host END, workload, 1, rev FROM nested_day;
UPDATE share_series SET since_ns = COALESCE((SELECT max(x.minute) FROM nested_day x WHERE x.host = share_series.host AND x.workload = share_series.workload), 0) * 60000000000;
DROP TABLE nested_day;
