"""The tests, a package so that they import their helpers as tests.support."""
