"""This package decides who may connect to the ports of a server, and who may do what."""
