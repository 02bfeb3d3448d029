"""Replace DeepSpeed in this process: ``import deepspeed`` then imports ``dsengine``.

    import dsengine.as_deepspeed                            # the first line of a script, or
    python -m dsengine.as_deepspeed train.py                # an unchanged script
    torchrun --nproc-per-node 8 -m dsengine.as_deepspeed train.py --deepspeed ds.json
    accelerate launch -m dsengine.as_deepspeed train.py
    python -m dsengine.as_deepspeed -m some.module          # modules too

Every ``deepspeed.x`` is then the same object as ``dsengine.x``. Programs that check whether and in
which release DeepSpeed is installed find metadata that names dsengine. Nothing is written to disk.
Raises ImportError if DeepSpeed has already been imported.
"""

import sys

from dsengine.deepspeed.replacement import replace_deepspeed
from dsengine.programs import run_program

replace_deepspeed()

if __name__ == "__main__":
    run_program(sys.argv[1:], "dsengine.as_deepspeed")
