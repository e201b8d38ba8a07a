-- {int}, {blob}, {id}, {strict} and {keyed} are put in for each database.
-- Instants are ns since 1970, 0 is none. A minute counts from 1970.

CREATE TABLE counter (
	id           {int} NOT NULL PRIMARY KEY CHECK (id = 1),
	rev          {int} NOT NULL, -- one more for each transaction that writes
	hour_mark    {int} NOT NULL, -- hours before it are folded
	day_mark     {int} NOT NULL, -- days before it are folded
	minute_floor {int} NOT NULL, -- minutes before it are not kept any more
	hour_floor   {int} NOT NULL  -- hours before it are not kept any more
) {strict};
INSERT INTO counter (id, rev, hour_mark, day_mark, minute_floor, hour_floor) VALUES (1, 0, 0, 0, 0, 0);

-- The days that have tables of minutes.
CREATE TABLE kept (
	day  {int} NOT NULL PRIMARY KEY, -- its first minute
	rows {int} NOT NULL              -- that have been folded
) {strict};

-- The days whose groups are to be summed anew.
CREATE TABLE stale_day (
	minute {int} NOT NULL PRIMARY KEY
) {strict};

CREATE TABLE node (
	id          {id},
	node_id     text  NOT NULL UNIQUE,
	cluster     text  NOT NULL,
	name        text  NOT NULL,
	machine_id  text  NOT NULL,
	boot        text  NOT NULL,
	pool        text  NOT NULL DEFAULT '',
	enrolled_ns {int} NOT NULL,
	revoked_ns  {int} NOT NULL DEFAULT 0,
	through_ns  {int} NOT NULL DEFAULT 0,
	cpus        {int} NOT NULL DEFAULT 0,
	cpus_minute {int} NOT NULL DEFAULT 0, -- in which it had them
	rev         {int} NOT NULL
) {strict};
CREATE INDEX node_machine ON node (machine_id);

CREATE TABLE workload (
	id           {id},
	node         {int} NOT NULL REFERENCES node (id),
	short        {int} NOT NULL,
	wid          text  NOT NULL DEFAULT '', -- until it has a name
	kind         text  NOT NULL DEFAULT '',
	key          text  NOT NULL DEFAULT '',
	name         text  NOT NULL DEFAULT '',
	path         text  NOT NULL DEFAULT '',
	parent       text  NOT NULL DEFAULT '',
	job          text  NOT NULL DEFAULT '',
	username     text  NOT NULL DEFAULT '',
	project      text  NOT NULL DEFAULT '',
	namespace    text  NOT NULL DEFAULT '',
	pod          text  NOT NULL DEFAULT '',
	container    text  NOT NULL DEFAULT '',
	started_ns   {int} NOT NULL DEFAULT 0,
	ended_ns     {int} NOT NULL DEFAULT 0,
	exit_code    {int},
	named_ns     {int} NOT NULL DEFAULT 0, -- up to when what named it was booked
	first_minute {int} NOT NULL DEFAULT 0, -- of the folded ones with use
	last_minute  {int} NOT NULL DEFAULT 0,
	rev          {int} NOT NULL,
	UNIQUE (node, short)
) {strict};

CREATE TABLE workload_label (
	workload {int} NOT NULL REFERENCES workload (id),
	key      text  NOT NULL,
	value    text  NOT NULL,
	PRIMARY KEY (workload, key)
) {keyed};
CREATE INDEX workload_label_value ON workload_label (key, value);

CREATE TABLE stream (
	id        {blob} NOT NULL PRIMARY KEY,
	node      {int}  NOT NULL REFERENCES node (id),
	next      {int}  NOT NULL,
	last      {blob} NOT NULL,
	boot      text   NOT NULL,
	opened_ns {int}  NOT NULL,
	seen_ns   {int}  NOT NULL
) {keyed};
CREATE INDEX stream_node ON stream (node);

CREATE TABLE batch (
	stream   {blob} NOT NULL,
	number   {int}  NOT NULL,
	hash     {blob} NOT NULL,
	taken_ns {int}  NOT NULL,
	PRIMARY KEY (stream, number)
) {keyed};
CREATE INDEX batch_taken ON batch (taken_ns);

-- Batches that contradict what was taken, for a person to see.
CREATE TABLE aside (
	id     {id},
	node   {int}  NOT NULL REFERENCES node (id),
	stream {blob} NOT NULL,
	number {int}  NOT NULL,
	hash   {blob} NOT NULL,
	sent   {blob} NOT NULL,
	at_ns  {int}  NOT NULL,
	UNIQUE (stream, number, hash)
) {strict};

CREATE TABLE gap (
	id        {id},
	node      {int} NOT NULL REFERENCES node (id),
	from_ns   {int} NOT NULL,
	to_ns     {int} NOT NULL,
	reason    text  NOT NULL,
	detail    text  NOT NULL,
	booked_ns {int} NOT NULL,
	UNIQUE (node, from_ns, to_ns, reason)
) {strict};

CREATE TABLE shift (
	id      {id},
	node    {int} NOT NULL REFERENCES node (id),
	boot    text  NOT NULL,
	at_ns   {int} NOT NULL,
	by_ns   {int} NOT NULL,
	from_ns {int} NOT NULL
) {strict};
CREATE INDEX shift_node ON shift (node, from_ns);

CREATE TABLE token (
	id         text   NOT NULL PRIMARY KEY,
	hash       {blob} NOT NULL,
	role       text   NOT NULL,
	cluster    text   NOT NULL,
	uses       {int}  NOT NULL, -- that are left; -1 is any number
	created_ns {int}  NOT NULL,
	expires_ns {int}  NOT NULL,
	revoked_ns {int}  NOT NULL
) {strict};

CREATE TABLE audit (
	id     {id},
	at_ns  {int} NOT NULL,
	actor  text  NOT NULL,
	action text  NOT NULL,
	object text  NOT NULL,
	detail text  NOT NULL
) {strict};
