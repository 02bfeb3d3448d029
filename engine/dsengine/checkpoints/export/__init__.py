"""Import and export of full weights: safetensors as in Hugging Face, torch files, state dicts."""
