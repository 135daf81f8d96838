"""Measurements of the engine: `paceline bench offline`. Speed only; nothing here judges text."""
