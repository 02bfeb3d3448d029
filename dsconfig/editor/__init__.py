"""What an editor shows about a config while it is written, and the language server."""
