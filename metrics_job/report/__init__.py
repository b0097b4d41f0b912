"""The report people look at: the job's Parquet tables as one HTML file, and in short in the terminal.

reading.py (Parquet → sums) → core/facts.py (sums → what is told) → core/figures.py (→ descriptions of charts)
→ page.py (→ one file) and terminal.py. Only reading.py knows Parquet, only page.py the charts' script.
"""
