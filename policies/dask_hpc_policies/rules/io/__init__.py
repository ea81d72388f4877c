"""Rules that know the load on the file system."""
