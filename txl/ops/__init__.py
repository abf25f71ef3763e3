"""Operators with a plain definition and fast paths that equal it, a folder each."""
