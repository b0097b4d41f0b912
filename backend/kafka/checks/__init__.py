"""Whether the cluster is set so that the promises hold, and whether it is the one that it should be."""
