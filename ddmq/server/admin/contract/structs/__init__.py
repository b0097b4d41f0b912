"""The Structs that describe the answers of the admin API, one module for each part of it."""
