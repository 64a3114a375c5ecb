"""Text to batches of token ids. Knows no model."""
