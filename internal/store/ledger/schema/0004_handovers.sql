-- What hosts give their virtual machines, by the epoch in which it is counted.
CREATE TABLE share_series (
	id       {id},
	guest    text  NOT NULL, -- UUID
	epoch    text  NOT NULL,
	host     {int} NOT NULL REFERENCES node (id),
	workload {int} NOT NULL REFERENCES workload (id), -- what the guest is there
	name     text  NOT NULL,
	first_ns {int} NOT NULL, -- when the first of its windows began
	last_ns  {int} NOT NULL, -- when the last one ended
	UNIQUE (guest, epoch, host)
) {strict};
CREATE INDEX share_series_last ON share_series (last_ns);

-- The shares of one window of a host.
CREATE TABLE share_part (
	series    {int}  NOT NULL REFERENCES share_series (id),
	first_n   {int}  NOT NULL,
	last_n    {int}  NOT NULL,
	shares    {blob} NOT NULL,
	booked_ns {int}  NOT NULL,
	PRIMARY KEY (series, first_n)
) {keyed};
CREATE INDEX share_part_booked ON share_part (booked_ns);

-- The shares that guests closed their windows with.
CREATE TABLE closing (
	guest     text  NOT NULL, -- UUID
	epoch     text  NOT NULL,
	n         {int} NOT NULL,
	node      {int} NOT NULL REFERENCES node (id),
	energy    {int} NOT NULL, -- uJ
	from_ns   {int} NOT NULL, -- of the window
	to_ns     {int} NOT NULL,
	compared  {int} NOT NULL, -- 1: the host's share was there
	booked_ns {int} NOT NULL,
	PRIMARY KEY (guest, epoch, n, node)
) {keyed};
CREATE INDEX closing_booked ON closing (booked_ns);

-- How they compare, by day.
CREATE TABLE reconciled (
	minute    {int} NOT NULL, -- the day's first
	node      {int} NOT NULL REFERENCES node (id), -- the guest
	guest     text  NOT NULL, -- its UUID
	host      {int} NOT NULL REFERENCES node (id),
	workload  {int} NOT NULL REFERENCES workload (id),
	compared  {int} NOT NULL,
	differing {int} NOT NULL,
	largest   {int} NOT NULL, -- difference, uJ
	n         {int} NOT NULL, -- of the latest
	to_ns     {int} NOT NULL, -- end of its window
	PRIMARY KEY (minute, node, guest, host, workload)
) {keyed};

-- The days on which nodes were guests: what they used is in their hosts' figures.
CREATE TABLE nested_day (
	node     {int} NOT NULL REFERENCES node (id),
	minute   {int} NOT NULL, -- the day's first
	host     {int} NOT NULL, -- 0: not known here
	workload {int} NOT NULL, -- 0: not known here
	rev      {int} NOT NULL,
	PRIMARY KEY (node, minute)
) {keyed};
CREATE INDEX nested_day_minute ON nested_day (minute);
CREATE INDEX nested_day_told ON nested_day (rev, node, minute);

-- In which node it is now, 0 is none, what it is there, since when, when an equal
-- share was found last, and up to when it told of shares.
ALTER TABLE node ADD COLUMN host {int} NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN host_workload {int} NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN nested_ns {int} NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN equal_ns {int} NOT NULL DEFAULT 0;
ALTER TABLE node ADD COLUMN handed_ns {int} NOT NULL DEFAULT 0;
