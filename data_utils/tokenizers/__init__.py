"""Tokenizers: text to ids and back, one file a kind."""
