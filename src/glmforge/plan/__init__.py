"""Arithmetic before the run: batch sizes and the DeepSpeed config. No torch, no device."""
