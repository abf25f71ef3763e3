"""Training: the loop, a step, optimizers, the run folder."""
