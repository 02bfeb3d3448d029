"""How the engine handles each key of a config: used (``honoured``), inert or refused."""
