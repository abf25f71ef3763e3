"""Measures of length besides perplexity, and of what a memory is used for."""
