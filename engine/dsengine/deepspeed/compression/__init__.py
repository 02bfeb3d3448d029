"""Of DeepSpeed's compression library, the two helpers that training scripts import."""
