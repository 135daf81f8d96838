"""Being here puts tests/ on sys.path, so that any test can say `from model.tiny import make_tiny`."""

import paceline  # noqa: F401 - before torch: it says how long OpenMP threads spin
