"""The two helpers of DeepSpeed's compression library that training scripts import."""
