-- The hash of the public key with which a downstream server enrolled, and the token by which. The
-- key tells who becomes a node or a server again.
ALTER TABLE source ADD COLUMN key_hash text NOT NULL DEFAULT '';
ALTER TABLE source ADD COLUMN token text NOT NULL DEFAULT '';
CREATE INDEX node_key ON node (key_hash);

-- The keys that took a use of a token. They take no second one.
CREATE TABLE token_use (
	token    text  NOT NULL,
	key_hash text  NOT NULL,
	used_ns  {int} NOT NULL,
	PRIMARY KEY (token, key_hash)
) {keyed};
INSERT INTO token_use (token, key_hash, used_ns) SELECT token, key_hash, max(enrolled_ns) FROM node WHERE token <> '' AND key_hash <> '' GROUP BY token, key_hash;
