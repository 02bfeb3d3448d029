"""How ranks find, hear and feed each other: process groups, the watch over failures, exchange."""
