"""States as bytes: flat trees, safetensors files, copies."""
