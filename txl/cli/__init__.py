"""Command lines: programs are started, flags read, errors told in one line."""
