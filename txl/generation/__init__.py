"""Generation: sampling from a trained model."""
