"""Which member of a group holds which queue: the strategies, the state of each queue, the decisions."""
