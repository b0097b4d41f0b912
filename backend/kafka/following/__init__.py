"""What every process follows: settings, progress and coordination, in three topics of the system's own."""
