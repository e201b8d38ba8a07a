-- Series, alerts and queries select nodes by cluster and name. Of several nodes with one name
-- in a cluster, the first keeps it; the others get the end of their id appended. A machine's
-- standalone jobs have the name of their machine.
UPDATE counter SET rev = rev + 1;
UPDATE node SET name = name || '~' || substr(node_id, length(node_id) - 5), rev = (SELECT rev FROM counter)
WHERE source = 0 AND name <> '' AND EXISTS (SELECT 1 FROM node o
	WHERE o.source = 0 AND o.revoked_ns = 0 AND o.cluster = node.cluster AND o.name = node.name AND o.id < node.id
	AND (o.machine_id LIKE '% jobs') = (node.machine_id LIKE '% jobs'));
