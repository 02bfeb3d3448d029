"""``zero.Init`` and its kin: parameters that are divided before and beside an engine."""
