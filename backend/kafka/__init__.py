"""The Kafka engine: the port over a Kafka cluster (docs/kafka.md, decision 17).

backend.py     KafkaBackend, the backend port: ties everything together
appends.py     sends              read/    reads, waits, bounds         topics/   what the cluster has
commit/        commits, in transactions where they have to be
following/     the system topics, followed to their end; state.py: what they say
coordination/  who holds what, as a replicated log; membership.py, watch.py, holding.py: this process's part
bridge.py      from native threads to the hub
"""
