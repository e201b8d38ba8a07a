-- How much of the volumes of Kubernetes clusters is used: levels by minute, from which rows of usage follow as they do from what
-- volumes reserve. A pod has the names of its claims, so that no agent tells of volumes that no pod of its node mounts.
-- Names with commas between them; of a volume the namespace and name of the claim that it is or was last bound to, as "shop/data".
ALTER TABLE pod ADD COLUMN claims text NOT NULL DEFAULT '';
ALTER TABLE pod ADD COLUMN released_ns {int} NOT NULL DEFAULT 0; -- of a volume: since when it is bound to no claim; 0: it is bound
CREATE INDEX pod_volume ON pod (cluster, name) WHERE volume = 1;

CREATE TABLE volume_use (
	pod    {int} NOT NULL, -- the id of the volume there
	minute {int} NOT NULL, -- since 1970, UTC: from its start on
	bytes  {int} NOT NULL,
	PRIMARY KEY (pod, minute)
) {keyed};
