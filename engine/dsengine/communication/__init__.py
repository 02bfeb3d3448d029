"""Process groups, failure detection between ranks, and direct exchange over gloo."""
