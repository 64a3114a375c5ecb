"""Models of other programs: their weights under our names, and ours under theirs."""
