"""The Spark job over metrics samples: rollups, objectives, anomalies, as Parquet (docs/metrics-job.md).

Needs the extra `spark`. No server imports this package; it knows the servers by the files they write
(docs/formats-samples.md) and by the catalogue of metrics. Importing a module starts nothing.
"""
