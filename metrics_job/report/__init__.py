"""The report people look at: the job's Parquet tables as one HTML file, and in short in the terminal.

reading.py (Parquet → sums) → core/facts.py (sums → report) → core/figures.py (→ descriptions of
charts) → run.py (→ one file) and terminal.py. Only reading.py knows Parquet, only run.py the charts' script.
"""
