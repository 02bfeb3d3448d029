"""Let dsengine stand in for DeepSpeed: from here on ``import deepspeed`` gives ``dsengine``.

    import dsengine.as_deepspeed                            # the first line of a script, or
    python -m dsengine.as_deepspeed train.py                # scripts as they are
    torchrun --nproc-per-node 8 -m dsengine.as_deepspeed train.py --deepspeed ds.json
    accelerate launch -m dsengine.as_deepspeed train.py
    python -m dsengine.as_deepspeed -m some.module          # modules too

Every ``deepspeed.x`` is then the object that ``dsengine.x`` is. Programs that ask whether DeepSpeed
is installed, and in which release, are answered by metadata that names dsengine. Nothing is written
to disk: the act holds for this process. Raises ImportError where it comes too late.
"""

import sys

from dsengine.deepspeed.standing_in import stand_in
from dsengine.programs import run_program

stand_in()

if __name__ == "__main__":
    run_program(sys.argv[1:], "dsengine.as_deepspeed")
