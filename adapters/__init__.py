"""Everything that touches somebody else's system: suffix trees, SGLang."""
