"""Evaluation: scores, conventions, tables, plots, studies of length, test-time adaptation."""
