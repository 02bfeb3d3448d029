"""Parameter names, shards and chunks, independent of the engine."""
