"""The model: layers, attention with memory, adaptive embedding and softmax."""
