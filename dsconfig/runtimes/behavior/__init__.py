"""Replays of the other programs on a config: values they fill in, and where they stop.

replay           the result of a replay: the config, reasons for values, failures
integrations     key lookup in transformers and accelerate, and the width of a model
trainer          TrainingArguments, transformers' two passes, the full Trainer
plugin, prepare  accelerate's DeepSpeedPlugin, and an accelerate script up to DeepSpeed
remarks          behavior that surprises users but raises no error
standalone       DeepSpeed on its own, or after a program that passes its config on
deepspeed_parse, deepspeed_batch, deepspeed_step
                 parsing order, batch arithmetic, initialization and steps
"""
