"""The Kafka engine: the port over a Kafka cluster (docs/kafka.md, decision 17).

opening.py       opens the engine: finds the cluster, checks it (cluster_rules.py), waits for its state
engine/          KafkaBackend and what serves its calls: topics, appends, reads and queries
coordination/    who holds which queue, as a replicated log, and this process's memberships in it
commits/         commits, in transactions where they must be; the mirror of committed offsets
state/           settings and progress, followed in the system topics
clients/         native threads with librdkafka's clients, and the bridge from them to the hub
options.py, records.py, topic_info.py, errors.py   configuration, formats of messages and topics, errors
"""
