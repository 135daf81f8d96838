"""Paceline: lossless speculative decoding, in production."""
