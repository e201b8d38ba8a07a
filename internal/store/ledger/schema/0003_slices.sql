-- Of the hour and of the day that begin at the marks, the rows of keys before
-- these are folded.
ALTER TABLE counter ADD COLUMN hour_workload {int} NOT NULL DEFAULT 0;
ALTER TABLE counter ADD COLUMN hour_node {int} NOT NULL DEFAULT 0;
ALTER TABLE counter ADD COLUMN day_workload {int} NOT NULL DEFAULT 0;
ALTER TABLE counter ADD COLUMN day_node {int} NOT NULL DEFAULT 0;

-- The groups of the day's workloads before it are summed.
ALTER TABLE stale_day ADD COLUMN next {int} NOT NULL DEFAULT 0;
