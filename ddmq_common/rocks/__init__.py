"""RocksDB behind one door (database.py), its damage and its write-ahead log."""
