-- Series, alerts and queries select nodes by cluster and name. Of several nodes with one name
-- in a cluster, the first keeps it; the others get the end of their id appended. A machine's
-- standalone jobs have the name of their machine.
UPDATE counter SET rev = rev + 1;
UPDATE node SET name = name || '~' || substr(node_id, length(node_id) - 5), rev = (SELECT rev FROM counter)
WHERE source = 0 AND name <> '' AND EXISTS (SELECT 1 FROM node o
	WHERE o.source = 0 AND o.revoked_ns = 0 AND o.cluster = node.cluster AND o.name = node.name AND o.id < node.id
	AND (o.machine_id LIKE '% jobs') = (node.machine_id LIKE '% jobs'));

-- What external meters showed in each minute that they settled, with the nodes that they feed, in
-- their order. It is kept as long as minutes are: late rows of the minute change how it is divided.
CREATE TABLE outer_energy (
	minute {int} NOT NULL,
	meter  text  NOT NULL,
	place  {int} NOT NULL, -- of the node among those that the meter feeds
	node   {int} NOT NULL REFERENCES node (id),
	energy {int} NOT NULL, -- of the meter, uJ
	error  {int} NOT NULL, -- by how much that may be off, uJ
	PRIMARY KEY (minute, meter, place)
) {keyed};

-- The energy that the rows of a settled minute had before; NULL in a minute that an earlier version
-- settled.
ALTER TABLE outer_minute ADD COLUMN before {blob};
