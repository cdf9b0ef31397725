"""Commands that produce the numbers in the documentation."""
