"""Sample files into slices by Arrow: columns are parsed and added up in Python workers."""
