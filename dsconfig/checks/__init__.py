"""The rules: everything DeepSpeed checks itself, and everything it lets pass.

judging        a config and facts in, findings out
registry       all rules by code, and what triggers them
rule           what a rule is; context: what rules ask about a config
page, examples the page of a rule, and its two examples judged
The others hold the rules, a family each.
"""
