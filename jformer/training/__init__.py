"""Training: loss, optimizer, step, devices, loop, checkpoints and metrics."""
