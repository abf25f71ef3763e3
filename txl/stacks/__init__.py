"""Other ways to build and run the layers: gates, reversible streams."""
