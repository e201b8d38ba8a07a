-- The pods of Kubernetes clusters, as their API servers show them: the names of workloads whose control
-- groups tell only ids.
CREATE TABLE pod (
	id         {id},
	cluster    text  NOT NULL,
	uid        text  NOT NULL, -- the key of its workload
	namespace  text  NOT NULL,
	name       text  NOT NULL,
	job        text  NOT NULL,
	node       text  NOT NULL,
	labels     text  NOT NULL, -- an object of JSON
	created_ns {int} NOT NULL,
	ended_ns   {int} NOT NULL DEFAULT 0, -- 0: the API server has it
	UNIQUE (cluster, uid)
) {strict};
CREATE INDEX pod_ended ON pod (ended_ns);

CREATE TABLE pod_container (
	cluster   text  NOT NULL,
	container text  NOT NULL, -- its id, the key of its workload
	pod       {int} NOT NULL, -- its id
	name      text  NOT NULL,
	PRIMARY KEY (cluster, container)
) {keyed};
CREATE INDEX pod_container_pod ON pod_container (pod);

CREATE INDEX workload_pod ON workload (key) WHERE kind IN ('pod', 'container');
CREATE INDEX workload_placed ON workload (rev) WHERE kind IN ('pod', 'container') AND namespace <> '';
CREATE INDEX workload_in_pod ON workload (node, parent) WHERE kind = 'container';
