"""The paper's tables and figures, one file each; `runner` gives them trial folders and resuming."""
