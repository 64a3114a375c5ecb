"""Pictures of what a config asks for and of what a run has learned, by the extra `plot`."""
