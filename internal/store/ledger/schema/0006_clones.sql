-- The node that a clone was made of, by its certificate: the first one, where that
-- was a clone too. '' is of what is no clone.
ALTER TABLE node ADD COLUMN root text NOT NULL DEFAULT '';
-- Of clones that were made before, the audit knows whose they are; and of those of clones
-- it is looked up again, as deep as anybody has made any by hand.
UPDATE node SET root = COALESCE((SELECT min(a.actor) FROM audit a JOIN node o ON o.node_id = a.actor
	WHERE a.action = 'node.clone' AND a.object = node.node_id AND a.actor <> node.node_id), '');
UPDATE node SET root = (SELECT o.root FROM node o WHERE o.node_id = node.root) WHERE EXISTS (SELECT 1 FROM node o WHERE o.node_id = node.root AND o.root <> '');
UPDATE node SET root = (SELECT o.root FROM node o WHERE o.node_id = node.root) WHERE EXISTS (SELECT 1 FROM node o WHERE o.node_id = node.root AND o.root <> '');
UPDATE node SET root = (SELECT o.root FROM node o WHERE o.node_id = node.root) WHERE EXISTS (SELECT 1 FROM node o WHERE o.node_id = node.root AND o.root <> '');
CREATE INDEX node_root ON node (root);
