-- Where the boots of nodes are placed in wall time. Backlogs of a boot arrive in several
-- batches, and after it ended nobody can check its clock.
CREATE TABLE placed_boot (
	node      {int} NOT NULL REFERENCES node (id),
	boot      text  NOT NULL,
	offset_ns {int} NOT NULL, -- what is added to CLOCK_BOOTTIME to get wall time
	taken_ns  {int} NOT NULL, -- when something of it was booked last, within a day
	PRIMARY KEY (node, boot)
) {keyed};
CREATE INDEX placed_boot_taken ON placed_boot (taken_ns);

-- What else nodes have added on their latest day.
ALTER TABLE node_quota ADD COLUMN streams {int} NOT NULL DEFAULT 0;
ALTER TABLE node_quota ADD COLUMN batches {int} NOT NULL DEFAULT 0;
ALTER TABLE node_quota ADD COLUMN ranges {int} NOT NULL DEFAULT 0; -- of booked time, with their kernel runs and boots
ALTER TABLE node_quota ADD COLUMN handovers {int} NOT NULL DEFAULT 0;

-- Streams that nobody has used for long are dropped.
CREATE INDEX stream_seen ON stream (seen_ns);
