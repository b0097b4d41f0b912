"""Thrift's bytes: frames, envelopes, structs, and templates of answers."""
