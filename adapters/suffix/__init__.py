"""Cache drafts from suffix trees (arctic-inference). Knows tokens, not engines or gates."""

from hybridspec.adapters.suffix.cache import SuffixCache, SuffixStats

__all__ = ["SuffixCache", "SuffixStats"]
