"""Evaluation: reading, conventions, scores, rows, reports and plots; test-time adaptation."""
