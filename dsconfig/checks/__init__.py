"""The rules: mistakes that DeepSpeed rejects, and mistakes that it accepts silently.

runner          check a config: document and facts in, findings out
registry        all rules by code, and their triggers
rule, context   types of rules and findings; the config as rules see it
page, examples  documentation page of a rule; check of its two examples
Each other module contains the rules of one topic.
"""
