"""Tests of the command line; a package, for it has a conftest of its own."""
