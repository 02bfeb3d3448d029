"""The functions of DeepSpeed's checkpoint package that scripts import."""
