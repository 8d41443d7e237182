"""Hides torch from the processes that tests start: tests/conftest.py says why."""

raise ImportError("torch is hidden from the processes that tests start")
