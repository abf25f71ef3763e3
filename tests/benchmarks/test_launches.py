"""What an update launches, reads and multiplies on a GPU; counted, so no GPU is asked."""
