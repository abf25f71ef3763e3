"""Evaluation: reading, conventions, scores, rows, reports and plots; length studies; test-time
adaptation.
"""
