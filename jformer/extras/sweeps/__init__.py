"""Sweeps: many runs of one config with changes, as processes here or as jobs of a cluster."""
