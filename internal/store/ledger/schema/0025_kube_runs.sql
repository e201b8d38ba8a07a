-- Jobs of Kubernetes are runs of which workloads are parts, as their pods are on any nodes. Each workload that is a part of one says what
-- is known of it, so that servers above know it too.
ALTER TABLE workload ADD COLUMN run text NOT NULL DEFAULT '';             -- the id of the run; '': of none
ALTER TABLE workload ADD COLUMN run_name text NOT NULL DEFAULT '';
ALTER TABLE workload ADD COLUMN run_started_ns {int} NOT NULL DEFAULT 0;
ALTER TABLE workload ADD COLUMN run_ended_ns {int} NOT NULL DEFAULT 0;    -- 0: not known
ALTER TABLE workload ADD COLUMN run_exit {int} NOT NULL DEFAULT -1;       -- -1: not known
CREATE INDEX workload_run ON workload (run, id) WHERE run <> '';
CREATE INDEX workload_run_job ON workload (job, run_started_ns) WHERE run <> '' AND run_exit = 0; -- with which runs are compared

ALTER TABLE pod ADD COLUMN run_uid text NOT NULL DEFAULT '';              -- of its Job
ALTER TABLE pod ADD COLUMN run_name text NOT NULL DEFAULT '';
CREATE INDEX pod_run ON pod (cluster, run_uid) WHERE run_uid <> '';

-- The Jobs of Kubernetes clusters, as their API servers show them.
CREATE TABLE kube_job (
	id         {id},
	cluster    text  NOT NULL,
	namespace  text  NOT NULL,
	uid        text  NOT NULL,
	started_ns {int} NOT NULL,
	ended_ns   {int} NOT NULL, -- 0: it has not, or that is not known
	exit_code  {int} NOT NULL, -- -1: not known
	failed_ns  {int} NOT NULL, -- end of the container that the exit code is of; 0: of none
	placed     {int} NOT NULL, -- the workloads that are parts of it up to this id say what this row says; 2^63-1: all
	gone_ns    {int} NOT NULL, -- since when the API server does not have it; 0: it has it
	UNIQUE (cluster, namespace, uid)
) {strict};
CREATE INDEX kube_job_gone ON kube_job (gone_ns);
CREATE INDEX kube_job_open ON kube_job (cluster) WHERE placed <> 9223372036854775807;
