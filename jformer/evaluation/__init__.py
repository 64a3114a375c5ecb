"""Hypotheses and references to scores."""
