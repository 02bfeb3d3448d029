"""What dsengine supports, ignores and refuses: each statement once.

``table`` has the features, parallel degrees and styles; ``deepspeed_names`` the names of
``deepspeed`` that dsengine does not have. The rules of keys (``planner/coverage``), the degrees of
each program (``runtimes/capabilities``) and the engine's errors refer to them;
``dsconfig.capabilities`` returns them together.
"""
