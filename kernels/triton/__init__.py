"""Fused Triton forms of the recurrence and its neighbours, forward and backward. Importing this package needs Triton."""
