"""The data pipeline, from text to batches of token ids; independent of any model."""
