"""Optimizer classes of 16-bit engines without ZeRO."""
