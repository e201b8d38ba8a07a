-- Tables of usage have a second column for the quality of resources, rough_high. It is part of the key of
-- group_day: the index is made again with it.
DROP INDEX IF EXISTS group_day_key;
