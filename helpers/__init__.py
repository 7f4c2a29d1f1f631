"""Helpers of the course "Extending PyTorch, one gradient at a time"."""
