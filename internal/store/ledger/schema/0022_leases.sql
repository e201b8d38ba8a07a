-- Which server names the pods of a cluster. It writes only as long as its number is the latest one.
CREATE TABLE pod_lease (
	cluster  text  NOT NULL PRIMARY KEY,
	holder   text  NOT NULL,
	number   {int} NOT NULL, -- one more whenever it is taken
	until_ns {int} NOT NULL  -- when others may take it
) {keyed};
