-- The hash of the public key with which a downstream server enrolled, and the token by which. The
-- key tells who becomes a node or a server again.
ALTER TABLE source ADD COLUMN key_hash text NOT NULL DEFAULT '';
ALTER TABLE source ADD COLUMN token text NOT NULL DEFAULT '';
CREATE INDEX node_key ON node (key_hash);
