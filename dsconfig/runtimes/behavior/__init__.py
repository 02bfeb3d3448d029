"""What the other programs do with a config: their fills and their ways to stop, replayed.

replay           what a replay leaves: a config, why each value was written, how it stops
integrations     how transformers and accelerate look keys up, and the width of a model
trainer          TrainingArguments, transformers' two passes, the Trainer's whole chain
plugin, prepare  accelerate's DeepSpeedPlugin, and an accelerate script up to DeepSpeed
remarks          what the user surely does not want, and gets without an error
alone            DeepSpeed by itself, and after a program that hands its config on
deepspeed_parse, deepspeed_batch, deepspeed_step
                 the order in which DeepSpeed reads; the batch; building and stepping
"""
