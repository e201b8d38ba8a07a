-- The node that a clone was made of, by its certificate: the first one, where that
-- was a clone too. '' is of what is no clone.
ALTER TABLE node ADD COLUMN root text NOT NULL DEFAULT '';
CREATE INDEX node_root ON node (root);
