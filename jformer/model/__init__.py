"""Section 3 of the paper: pure functions and linen modules. Knows no data, no optimizer, no devices."""
