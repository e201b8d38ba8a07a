-- The jobs of Slurm clusters, as their controllers show them: the names of workloads whose control groups tell only
-- numbers. Several jobs may have had one number, at different times.
CREATE TABLE slurm_job (
	id           {id},
	cluster      text  NOT NULL,
	job          {int} NOT NULL, -- its number
	submitted_ns {int} NOT NULL, -- the latest time: a requeued job is submitted again
	restarts     {int} NOT NULL,
	from_ns      {int} NOT NULL, -- workloads that were known before are not of it
	name         text  NOT NULL,
	username     text  NOT NULL,
	account      text  NOT NULL,
	hosts        text  NOT NULL, -- on which it ran, each between commas
	labels       text  NOT NULL, -- an object of JSON
	started_ns   {int} NOT NULL,
	ended_ns     {int} NOT NULL, -- 0: not known
	exit_code    {int},
	gone_ns      {int} NOT NULL, -- since when it has ended or the controller does not have it; 0: it has it
	UNIQUE (cluster, job, submitted_ns)
) {strict};
CREATE INDEX slurm_job_gone ON slurm_job (gone_ns);

-- When the jobs of a cluster were read last.
CREATE TABLE slurm_read (
	cluster text  NOT NULL PRIMARY KEY,
	read_ns {int} NOT NULL
) {keyed};

CREATE INDEX workload_slurm ON workload (key) WHERE kind IN ('slurm-job', 'slurm-step');
CREATE INDEX workload_slurm_named ON workload (rev) WHERE kind IN ('slurm-job', 'slurm-step') AND job <> '';
CREATE INDEX workload_in_slurm ON workload (node, parent) WHERE kind = 'slurm-step';
