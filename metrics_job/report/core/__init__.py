"""The thinking part: sums in, sentences, rows and descriptions of charts out.

No files, no clock, no HTML.
"""
