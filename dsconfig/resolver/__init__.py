""" "auto" into values: our policy with a ledger, or what another program would do.

entry          the one question, and which of the two answers it
resolution     the answer: a config without "auto", and why each value is what it is
draft          the config while it is being resolved
policy         our own order, whole blocks that are "auto", and our choices in words
precision, optimizer, scheduler, zero, buckets, batch, micro_batch, other_keys
               one step of the policy each
foreign        what another program writes, and how it stops
agreement      config, TrainingArguments and accelerate config against each other
codes          every finding of the resolver
"""
