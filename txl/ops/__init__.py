"""Operators: a reference definition each, and faster implementations tested against it."""
