"""Memory and time of one choice of stage, tiers, recomputation and batch; the search for it."""
