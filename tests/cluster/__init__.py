"""Tests of Ray processes; a package, for it has a conftest of its own."""
