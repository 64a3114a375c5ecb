"""Section 3: pure functions and linen modules, independent of data, optimizer and devices."""
