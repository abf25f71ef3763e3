"""The programs: train, eval, generate, convert."""
