"""What a process has around it: other processes, signals, log lines, the
allocator, JSON records.
"""
