"""Sample files into minutes: lines are decoded and added up in Python workers, by columns."""
