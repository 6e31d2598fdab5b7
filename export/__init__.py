"""Torch checkpoint to ONNX, with a manifest and a parity check."""
