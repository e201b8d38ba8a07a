-- When the last certificate of a node ends, the hash of the public key that it enrolled
-- with, and the token by which; and the node that a token is bound to.
ALTER TABLE node ADD COLUMN certified_ns {int} NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN key_hash text NOT NULL DEFAULT '';
ALTER TABLE node ADD COLUMN token text NOT NULL DEFAULT '';
ALTER TABLE token ADD COLUMN node text NOT NULL DEFAULT '';
-- Certificates were issued for 30 days, and each renewal was audited.
UPDATE node SET certified_ns = 2592000000000000 + COALESCE((SELECT max(a.at_ns) FROM audit a
	WHERE a.action = 'node.renew' AND a.object = node.node_id AND a.at_ns > node.enrolled_ns), enrolled_ns) WHERE source = 0;
