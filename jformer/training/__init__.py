"""Training: loss, optimizer, step, sharding, loop, checkpoints and metrics."""
