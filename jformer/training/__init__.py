"""From batches to checkpoints: loss, optimizer, step, devices, loop, and what one sees of them."""
