"""The plugin of pytest, under the name that `pytest -p` takes: see `program/plugin.py`."""

from .program.plugin import pytest_addoption, pytest_configure

__all__ = ["pytest_addoption", "pytest_configure"]
