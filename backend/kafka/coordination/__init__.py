"""The holders of queues: a table that every process derives alike from the events of one partition."""
