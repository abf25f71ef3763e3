"""For tools that look for packages here; see `txl.data_utils`."""
