"""The fused engine: GPU kernels for the sums, the network and the optimiser."""
