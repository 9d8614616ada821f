"""Ours beside the peers; torch and numpy alone for the GPU parts."""
