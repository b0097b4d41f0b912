"""Crash tests share faulty_storage.py; this file puts its folder on the path."""
