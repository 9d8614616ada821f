"""The public data sets and synthetic streams."""
