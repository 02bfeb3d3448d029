"""Resolution of "auto": dsconfig's policy with a ledger, or a replay of another program.

entry          resolve(), which selects policy or replay
resolution     the result: a config without "auto", and the reason for each value
draft          the config during resolution
policy         order of the policy's steps, blocks that are "auto", documentation of the choices
precision, optimizer, scheduler, zero, buckets, batch, micro_batch, other_keys
               one step of the policy each
foreign        values and errors of other programs
agreement      conflicts between config, TrainingArguments and accelerate config
codes          diagnostics of the resolver
"""
