"""The topics of the cluster: asked for and changed in one thread, known on the hub."""
