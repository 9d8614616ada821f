"""Beyond the paper: extrapolation in the space of predictions, for any fitted model."""
