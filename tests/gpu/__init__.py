"""What only a card can show, measured on one: `make gpu` writes docs/internals/gpu.md.

Each part is a function of a setting and a time, and gives plain data; on the host, in a tiny
setting, all of them run in the suite.
"""
