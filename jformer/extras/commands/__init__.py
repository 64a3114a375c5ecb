"""Commands of the extras."""
