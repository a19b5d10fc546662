"""Encoding of states: flat trees, safetensors files, copies in host memory."""
