"""Tables from minutes (metrics_job.minutes) and from each other, one module per table or pair of tables.

Every function takes and gives DataFrames and reads nothing; columns are those of metrics_job.tables without
the partition, in any order. Hours are computed from minutes.
"""
