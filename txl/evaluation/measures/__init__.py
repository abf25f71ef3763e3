"""What is measured besides the score: attention by distance and by token, the loss of each token."""
