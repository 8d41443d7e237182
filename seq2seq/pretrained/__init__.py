"""Models of other projects, imported and exported."""
