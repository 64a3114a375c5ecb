"""Plots of schedules, learning curves and attention (extra `plot`), and the report of runs."""
