"""The config that ``dsconfig init`` writes: chosen by the resolver, trimmed, commented."""
