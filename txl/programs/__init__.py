"""The programs: each reads its command line, calls what does the work, and prints."""
