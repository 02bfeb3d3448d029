"""Start the accelerate loop with accelerate's launcher and all settings as flags."""

import argparse
import subprocess
import sys
from pathlib import Path

import deepspeed

if __name__ == "__main__":
    target, model, folder, *rest = sys.argv[1:]
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage")
    parser.add_argument("--precision")
    chosen = parser.parse_args(rest)
    launcher = (
        *("accelerate.commands.launch", "--use_deepspeed", f"--zero_stage={chosen.stage}"),
        *("--gradient_accumulation_steps=2", "--gradient_clipping=1.0"),
        *("--zero3_save_16bit_model=true", f"--zero3_init_flag={chosen.stage == '3'}"),
        f"--mixed_precision={chosen.precision}",
        *("--num_processes=1", "--num_machines=1", "--main_process_port=0"),
    )
    is_dsengine = "dsengine" in deepspeed.__version__
    program = () if is_dsengine else ("-m", "frameworks.real")
    script = (str(Path(__file__).parent / "accelerated.py"), target, model, folder)
    settings = (f"--stage={chosen.stage}", "--way=launched", f"--precision={chosen.precision}")
    command = [sys.executable, "-m", *launcher, *program, *script, *settings]
    raise SystemExit(subprocess.run(command).returncode)
