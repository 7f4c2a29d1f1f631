"""Reference operations, one a file (or folder), each of which works alone."""
