"""The embedded target, its EAGLE3 head and gate, and the side-by-side demo."""
