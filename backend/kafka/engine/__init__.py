"""The engine that the proxies use: topics, appends, reads and queries, and its process in the cluster."""
