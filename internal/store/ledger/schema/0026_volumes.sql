-- Volumes of Kubernetes clusters reserve storage as pods do, and are rows of the same tables. Namespace, job and labels are those of
-- the claim that a volume is bound to: without one there is no namespace and no job.
ALTER TABLE pod ADD COLUMN volume {int} NOT NULL DEFAULT 0;           -- 1: a volume
ALTER TABLE pod_lease ADD COLUMN volumes_ns {int} NOT NULL DEFAULT 0; -- when the volumes of the cluster were listed first
