"""y = h(x; phi, W_hat) with W_hat = g(W, X; omega): backbones, extrapolators, FATE, baselines."""
