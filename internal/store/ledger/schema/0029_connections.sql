-- With whom workloads exchanged network traffic: for each hour and version of a workload, a sketch of its largest edges, see the
-- package connection. It is merged, and so its bytes are one value.
CREATE TABLE connections (
	minute   {int}  NOT NULL, -- the first of the hour, since 1970, UTC
	workload {int}  NOT NULL REFERENCES workload (id),
	sketch   {blob} NOT NULL,
	rev      {int}  NOT NULL,
	PRIMARY KEY (minute, workload)
);
CREATE INDEX connections_workload ON connections (workload, minute);
