"""Who holds which queue: a table that every process keeps alike from the events of one partition."""
