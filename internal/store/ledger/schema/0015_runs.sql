-- Which node booked time of a kernel run first, and the server's time of the kernel's boot by that
-- node's clock. A node whose clock does not agree measures another kernel.
ALTER TABLE kernel_run ADD COLUMN node {int} NOT NULL DEFAULT 0;
ALTER TABLE kernel_run ADD COLUMN began_ns {int} NOT NULL DEFAULT 0; -- 0: not known
UPDATE kernel_run SET node = COALESCE((SELECT b.node FROM booked b WHERE b.run = kernel_run.id ORDER BY b.from_ns LIMIT 1), 0);
