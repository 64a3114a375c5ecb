"""Evaluation: scores of hypotheses against references, and a significance test."""
