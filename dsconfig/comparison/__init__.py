"""Differences in meaning.

differences       between two configs
upgrades          of one config between two DeepSpeed releases
run_differences   in training, memory and time
"""
