"""Being here puts tests/ on sys.path, so that any test can say `from model.tiny import make_tiny`."""
