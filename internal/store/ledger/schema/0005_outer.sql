-- The meters outside the machines that were ever read here.
CREATE TABLE outer_meter (
	name text  NOT NULL PRIMARY KEY,
	kind text  NOT NULL,         -- of its samples: energy or power
	next {int} NOT NULL          -- minutes before it are settled
) {strict};

-- What they showed, as long as a minute needs it.
CREATE TABLE outer_sample (
	meter text  NOT NULL,
	at_ns {int} NOT NULL,
	value {int} NOT NULL,        -- uJ or uW
	PRIMARY KEY (meter, at_ns)
) {keyed};

-- The minutes of nodes that were made what their meters showed: each once.
CREATE TABLE outer_minute (
	node     {int} NOT NULL REFERENCES node (id),
	minute   {int} NOT NULL,
	meters   text  NOT NULL,     -- their names
	meter    {int} NOT NULL,     -- what they showed, uJ
	inside   {int} NOT NULL,     -- what the rows had before, uJ
	measured {int} NOT NULL,     -- how much of that was measured, uJ
	PRIMARY KEY (node, minute)
) {keyed};
CREATE INDEX outer_minute_minute ON outer_minute (minute);
