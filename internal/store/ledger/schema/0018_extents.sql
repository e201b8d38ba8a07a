-- The time that was measured as a part of something wider: by standalone jobs, and by agents in a control
-- group. Ranges of CLOCK_BOOTTIME of a kernel, with what was added to it for the time of the rows. Where
-- the wider part is booked too, the rows are within those of its node.
CREATE TABLE extent_range (
	node      {int} NOT NULL REFERENCES node (id),
	boot      text  NOT NULL,
	workload  {int} NOT NULL, -- the job; 0: all rows of the node
	scope     text  NOT NULL, -- '': not known
	ancestors text  NOT NULL, -- '': not known
	run       {int} NOT NULL, -- kernel run; 0: not known, of jobs
	from_ns   {int} NOT NULL,
	to_ns     {int} NOT NULL,
	offset_ns {int} NOT NULL,
	taken_ns  {int} NOT NULL,
	PRIMARY KEY (node, boot, workload, from_ns)
) {keyed};
INSERT INTO extent_range (node, boot, workload, scope, ancestors, run, from_ns, to_ns, offset_ns, taken_ns)
	SELECT node, boot, 0, '', '', 0, from_ns, to_ns, offset_ns, taken_ns FROM inner_range;
DROP TABLE inner_range;
CREATE INDEX extent_range_end ON extent_range (node, boot, to_ns);
CREATE INDEX extent_range_boot ON extent_range (boot, to_ns);
CREATE INDEX extent_range_scope ON extent_range (boot, scope, to_ns);
CREATE INDEX extent_range_taken ON extent_range (taken_ns);
