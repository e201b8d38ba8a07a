-- The time that standalone jobs of a node measured: ranges of CLOCK_BOOTTIME of a kernel, with what
-- was added to it for the time of the rows. Where the machine's agent books the same time, the
-- node's rows are within those of the agent.
CREATE TABLE inner_range (
	node      {int} NOT NULL REFERENCES node (id),
	boot      text  NOT NULL,
	from_ns   {int} NOT NULL,
	to_ns     {int} NOT NULL,
	offset_ns {int} NOT NULL,
	taken_ns  {int} NOT NULL,
	PRIMARY KEY (node, boot, from_ns)
) {keyed};
CREATE INDEX inner_range_end ON inner_range (node, boot, to_ns);
CREATE INDEX inner_range_boot ON inner_range (boot, to_ns);
CREATE INDEX inner_range_taken ON inner_range (taken_ns);
