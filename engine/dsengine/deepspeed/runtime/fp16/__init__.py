"""What an engine without ZeRO steps beside weights of 16 bits."""
