-- The kernels of which something is booked. A kernel that was restored to an earlier
-- memory image, or is a clone of one, is another run under the same boot id.
CREATE TABLE kernel_run (
	id         {id},
	cluster    text  NOT NULL,
	boot       text  NOT NULL,
	number     {int} NOT NULL, -- from 0
	highest_ns {int} NOT NULL, -- CLOCK_BOOTTIME that its meters showed last
	UNIQUE (cluster, boot, number)
) {strict};

-- The time of each kernel run that is booked: ranges of CLOCK_BOOTTIME that neither
-- overlap nor adjoin.
CREATE TABLE booked (
	run      {int} NOT NULL REFERENCES kernel_run (id),
	scope    text  NOT NULL,
	from_ns  {int} NOT NULL,
	to_ns    {int} NOT NULL,
	node     {int} NOT NULL REFERENCES node (id), -- that booked the end of it
	taken_ns {int} NOT NULL,                      -- when
	PRIMARY KEY (run, scope, from_ns)
) {keyed};

-- The kernel run that a node measured last; 0 is none.
ALTER TABLE node ADD COLUMN run {int} NOT NULL DEFAULT 0;
