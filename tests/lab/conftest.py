"""Fixtures of the commands, the library's; its place makes `report.folders` importable."""

from cli.conftest import openfate, refused  # noqa: F401
