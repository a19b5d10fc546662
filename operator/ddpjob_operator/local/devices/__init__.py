"""The GPUs of this machine, and which simulated worker uses which of them."""
