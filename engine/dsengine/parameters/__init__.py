"""Parameters as plain facts: their names, their shards, how a tensor is cut; needs no engine."""
