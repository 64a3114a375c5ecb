"""Decoding: search over a step function, translation of texts, forced decoding and alignment."""
