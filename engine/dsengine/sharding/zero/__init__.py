"""``zero.Init`` and ``GatheredParameters``: parameters partitioned outside an engine."""
