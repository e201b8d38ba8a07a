-- What pods reserve and are limited to. Levels hold from one second (Unix time) to another one, and rows of usage follow
-- from them: they are put, and put again when levels of the past change.
ALTER TABLE pod ADD COLUMN right_minute {int} NOT NULL DEFAULT 2147483648; -- rows of earlier minutes are right; 2^31: all are
ALTER TABLE pod ADD COLUMN put_minute {int} NOT NULL DEFAULT 0;            -- there are no rows of this minute and later ones
ALTER TABLE pod ADD COLUMN unsure {int} NOT NULL DEFAULT 0;                -- 1: it is not known exactly when it ended
CREATE INDEX pod_right ON pod (cluster, right_minute);
CREATE INDEX pod_unsure ON pod (cluster) WHERE unsure <> 0;
CREATE INDEX pod_node ON pod (cluster, node);

CREATE TABLE reservation (
	pod          {int} NOT NULL, -- its id
	container    text  NOT NULL, -- '': what the pod reserves beyond its containers
	from_s       {int} NOT NULL,
	to_s         {int} NOT NULL, -- 0: until now
	rough        {int} NOT NULL, -- 1: the levels are of the time before or after it
	cpu          {int} NOT NULL, -- thousandths of a CPU
	cpu_limit    {int} NOT NULL, -- the same; -1: none
	memory       {int} NOT NULL, -- bytes
	memory_limit {int} NOT NULL, -- the same; -1: none
	storage      {int} NOT NULL, -- bytes
	gpu          {int} NOT NULL, -- thousandths of an accelerator
	PRIMARY KEY (pod, container, from_s)
) {keyed};

-- The workloads to which the rows belong.
CREATE TABLE reservation_carrier (
	pod       {int} NOT NULL,
	container text  NOT NULL,
	workload  {int} NOT NULL, -- the id of its first version
	PRIMARY KEY (pod, container)
) {keyed};

ALTER TABLE pod_lease ADD COLUMN since_ns {int} NOT NULL DEFAULT 0; -- when the pods of the cluster were watched first
ALTER TABLE pod_lease ADD COLUMN seen_ns {int} NOT NULL DEFAULT 0;  -- when they were last known to be as the ledger has them
