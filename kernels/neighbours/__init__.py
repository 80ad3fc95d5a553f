"""What stands around the recurrence in a block: convolution, norms, activation, residual mixing, loss."""
