"""Reading with fixed weights: a text token by token or segment by segment, with the same result."""
