"""A table -> X: schema, encoder, multi-hot rows, splits and data sets.  Imports nothing."""
