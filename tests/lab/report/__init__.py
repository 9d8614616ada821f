"""Tests of the report; a package, for its tests share folders of results."""
