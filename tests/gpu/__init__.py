"""Measurements that need a GPU: `make gpu` writes docs/internals/gpu.md.

Each part is a function of a setting and a time limit and returns plain data; in a tiny setting on
the host, all of them run in the test suite.
"""
