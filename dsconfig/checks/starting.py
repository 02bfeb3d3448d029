"""Documentation pages for the findings about training commands.

The reader of scripts (``source.launch_conflicts``) reports them; these checks report nothing.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect


@rule("DSC710", Effect.ALTERED)
def visible_devices_ignored(config: Context) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES is replaced by the launcher

    With `--num_gpus`, `--num_nodes`, `--include` or `--exclude` the launcher of DeepSpeed deletes
    the variable, and counts GPUs from 0. accelerate replaces it by `gpu_ids`. The run may use GPUs
    that belong to someone else.

    with: name="train.sh"
    bad:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        CUDA_VISIBLE_DEVICES=4,5 deepspeed --num_gpus 2 train.py --deepspeed ds.json
    with: name="train.sh"
    good:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed --include localhost:4,5 train.py --deepspeed ds.json
    """
    yield from ()


@rule("DSC711", Effect.ALTERED, also=(Effect.COSTLY,))
def nodes_not_joined(config: Context) -> Iterator[Finding]:
    """A job reserves more nodes than its launcher joins

    Under `srun`, each node then trains a model of its own, and all write to the same files. Without
    it, one node trains and the others are idle (`costly`). torchrun takes `--nnodes` (1 by
    default), accelerate `num_machines`, DeepSpeed's launcher a hostfile.

    with: name="job.slurm"
    bad:
        #SBATCH --nodes=2
        cat > ds.json <<END
        {"train_batch_size": 16}
        END
        srun torchrun --nproc_per_node 8 train.py --deepspeed ds.json
    with: name="job.slurm"
    good:
        #SBATCH --nodes=2
        cat > ds.json <<END
        {"train_batch_size": 16}
        END
        srun torchrun --nnodes 2 --nproc_per_node 8 train.py --deepspeed ds.json
    """
    yield from ()


@rule(
    "DSC712",
    Effect.REFUSED,
    from_source="needs as many GPUs as the job reserves",
)
def ranks_without_devices(config: Context) -> Iterator[Finding]:
    """More ranks on a node than GPUs

    Each rank above the number of GPUs stops with `CUDA error: invalid device ordinal`. The same
    happens on one port if each of several tasks per node starts a launcher. ms-swift starts one
    process unless `NPROC_PER_NODE` is set, and rejects DeepSpeed on several GPUs then.

    with: name="job.slurm"
    bad:
        #SBATCH --gres=gpu:4
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        torchrun --nproc_per_node 8 train.py --deepspeed ds.json
    with: name="job.slurm"
    good:
        #SBATCH --gres=gpu:4
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        torchrun --nproc_per_node 4 train.py --deepspeed ds.json
    """
    yield from ()


@rule(
    "DSC713",
    Effect.REFUSED,
    also=(Effect.ALTERED,),
    from_source="options of a launcher, which the replays do not start",
)
def launch_type_overridden(config: Context) -> Iterator[Finding]:
    """Two types of launch for accelerate

    It accepts one of `--use_deepspeed`, `--multi_gpu`, `--use_fsdp`, `--cpu` and `--tpu`. A config
    that is passed to the program replaces the FSDP of accelerate's YAML without a message
    (`altered`).

    with: name="train.sh"
    bad:
        cat > ds.json <<END
        {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
        END
        accelerate launch --use_deepspeed --multi_gpu --deepspeed_config_file ds.json train.py
    with: name="train.sh"
    good:
        cat > ds.json <<END
        {"train_batch_size": 8, "zero_optimization": {"stage": 2}}
        END
        accelerate launch --use_deepspeed --deepspeed_config_file ds.json train.py
    """
    yield from ()


@rule("DSC714", Effect.INERT, also=(Effect.ALTERED,))
def launch_setting_unused(config: Context) -> Iterator[Finding]:
    """A config and its launch set different values

    accelerate fills options such as `--zero_stage` in where the file has "auto", and ignores them
    elsewhere. A config that the program is passed replaces the one of the launcher. ms-swift writes
    `--deepspeed_autotp_size` and `--zero_hpz_partition_size` into the config. axolotl writes
    `tensor_parallel_size` only into a config without the block `tensor_parallel`, and counts with
    its own value in any case (`altered`).

    with: name="train.sh", runtime="accelerate", micro_batch=1
    bad:
        cat > ds.json <<END
        {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
        END
        accelerate launch --use_deepspeed --zero_stage 3 --deepspeed_config_file ds.json train.py
    with: name="train.sh", runtime="accelerate", micro_batch=1
    good:
        cat > ds.json <<END
        {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": "auto"}}
        END
        accelerate launch --use_deepspeed --zero_stage 3 --deepspeed_config_file ds.json train.py
    """
    yield from ()


@rule("DSC715", Effect.INERT)
def option_given_twice(config: Context) -> Iterator[Finding]:
    """A command has the same option twice

    The last value is used, and nothing says so. An option that replaces one in a variable
    (`$COMMON_ARGS --learning_rate 1e-5`) is not reported.

    with: name="train.sh"
    bad:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed train.py --deepspeed ds.json --learning_rate 1e-4 --learning_rate 1e-5
    with: name="train.sh"
    good:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed train.py --deepspeed ds.json --learning_rate 1e-5
    """
    yield from ()


@rule("DSC717", Effect.REFUSED)
def command_rejected(config: Context) -> Iterator[Finding]:
    """A launcher or program rejects its command

    DeepSpeed's launcher accepts `--include`, `--exclude`, or counts of nodes and GPUs.
    LLaMA-Factory reads only `name=value` after a YAML, and starts several ranks, which DeepSpeed
    needs, if it sees several GPUs or `FORCE_TORCHRUN` is set.

    with: name="train.sh"
    bad:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed --include localhost:0,1 --num_gpus 2 train.py --deepspeed ds.json
    with: name="train.sh"
    good:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed --include localhost:0,1 train.py --deepspeed ds.json
    """
    yield from ()
