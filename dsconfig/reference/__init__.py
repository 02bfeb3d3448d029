"""Explanations of keys, rules and config files.

keys           reference text and data of a key
explanation    the explanation of a key, a rule or a file by name
deepspeed_docs links to DeepSpeed's documentation
"""
