-- What a workload is counted under may change: its namespace, job, user, project and labels. Each version of it
-- is a row of its own from the quarter of an hour on in which it begins, and rows of usage are those of a version.
-- Names, times and the exit code are the same in all rows of a workload. The program makes (node, short, from_minute)
-- unique in place of (node, short).
ALTER TABLE workload ADD COLUMN from_minute {int} NOT NULL DEFAULT 0; -- 0: the first version
ALTER TABLE workload ADD COLUMN version_of {int} NOT NULL DEFAULT 0;  -- the id of the first version; 0: it is the first
ALTER TABLE workload ADD COLUMN known_ns {int} NOT NULL DEFAULT 0;    -- when what it is counted under was known first
ALTER TABLE counter ADD COLUMN versions {int} NOT NULL DEFAULT 0;     -- how often versions of workloads were added or removed
