"""Section 3: pure functions and linen modules. Knows no data, no optimizer, no devices."""
