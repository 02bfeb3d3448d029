"""Replace DeepSpeed in this process: ``import deepspeed`` then imports ``dsengine``.

    import dsengine.as_deepspeed                    # the first line of a script, or
    python -m dsengine.as_deepspeed train.py        # an unchanged script, in this process
    python -m dsengine.as_deepspeed -m some.module

The command ``dsengine`` does the same for any program. The replacement reaches the Python processes
that this one starts (``dsengine.startup``). Every ``deepspeed.x`` is then the same object as
``dsengine.x``. Programs that check whether and in which release DeepSpeed is installed find
metadata that names dsengine. Nothing is written to disk.
Raises ImportError if DeepSpeed has already been imported.
"""

import sys

from dsengine.deepspeed.replacement import replace_deepspeed
from dsengine.programs import run_program
from dsengine.startup import reach_children

replace_deepspeed()
reach_children()

if __name__ == "__main__":
    run_program(sys.argv[1:], "dsengine.as_deepspeed")
