"""Division of samples, layers and models over ranks, besides the sharding of states."""
