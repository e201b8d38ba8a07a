-- The servers whose states come here.
CREATE TABLE source (
	id          {id},
	source_id   text  NOT NULL UNIQUE, -- that it was enrolled under
	cluster     text  NOT NULL,
	name        text  NOT NULL DEFAULT '',
	machine_id  text  NOT NULL DEFAULT '', -- its ledger's own id
	boot        text  NOT NULL DEFAULT '',
	enrolled_ns {int} NOT NULL DEFAULT 0,
	revoked_ns  {int} NOT NULL DEFAULT 0,
	seen_ns     {int} NOT NULL DEFAULT 0,  -- when it sent last
	sequence    {int} NOT NULL DEFAULT 0,  -- of the pages that were taken
	position    text  NOT NULL DEFAULT '', -- its own word for where it is
	coarse      {int} NOT NULL DEFAULT 0   -- before this minute a finer row may hold an hour or a day
) {strict};
CREATE INDEX source_machine ON source (machine_id);

-- Nodes that came from one source and are another's: whose rows count once.
CREATE TABLE foreign_node (
	source {int} NOT NULL REFERENCES source (id),
	node   {int} NOT NULL REFERENCES node (id),
	PRIMARY KEY (source, node)
) {keyed};

ALTER TABLE node ADD COLUMN source {int} NOT NULL DEFAULT 0; -- 0: it sends here itself
ALTER TABLE gap ADD COLUMN rev {int} NOT NULL DEFAULT 1;
ALTER TABLE shift ADD COLUMN rev {int} NOT NULL DEFAULT 1;
CREATE INDEX node_rev ON node (rev, id);
CREATE INDEX workload_rev ON workload (rev, id);
CREATE INDEX gap_rev ON gap (rev, id);
CREATE INDEX shift_rev ON shift (rev, id);

-- What revisions from one on belong to: a ledger that goes back to an older
-- copy of itself makes the same numbers again for other things.
CREATE TABLE epoch (
	rev {int} NOT NULL PRIMARY KEY, -- the first
	id  text  NOT NULL
) {strict};
