"""The paper, the comparisons and the speed: uses only what a user can import."""
