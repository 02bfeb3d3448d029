"""DeepSpeed's native operators: compilers, CUDA toolkits, stale locks."""

from dsconfig.failures.signature import Role, Signature

_LOCKED = (
    "the run waits for a lock in the build directory of torch extensions; a build that was "
    "interrupted leaves it behind"
)
_DELETE_LOCK = (
    "Stop the run and delete the folder of the operator in the build directory that the log names "
    "(~/.cache/torch_extensions)."
)

SIGNATURES = (
    Signature(
        name="cuda-toolkit-mismatch",
        phrases=(
            "unable to compile cuda/cpp extensions",
            "mismatches the version that was used to",
        ),
        releases={"deepspeed": ""},
        cause="the installed CUDA toolkit (nvcc) is of another release than the one torch was "
        "built with, so operators cannot be compiled",
        remedy="Install the toolkit of torch.version.cuda and set CUDA_HOME to it, or install "
        "torch for the installed toolkit. If only the minor release differs: "
        "DS_SKIP_CUDA_CHECK=1.",
        threads=("JIA-Lab-research/MGM/issues/91", "icip-cas/AutoAlign/issues/25"),
    ),
    Signature(
        name="cuda-home-missing",
        phrases=("CUDA_HOME does not exist", "CUDA_HOME environment variable is not set"),
        releases={"deepspeed": ""},
        cause="no CUDA toolkit (nvcc) was found, so operators cannot be compiled",
        remedy="Install the toolkit of torch.version.cuda (conda install -c nvidia cuda-nvcc), set "
        'CUDA_HOME, or use the optimizer of torch: "torch_adam": true.',
        threads=(
            "deepspeedai/DeepSpeed/issues/2772",
            "jingyaogong/minimind/issues/48",
            "thinhlpg/vixtts-demo/issues/12",
        ),
    ),
    Signature(
        name="ninja-missing",
        phrases=("Ninja is required to load C++ extensions", "due to ninja not being installed"),
        releases={"deepspeed": ""},
        cause="the build tool ninja is not on the PATH",
        remedy="Run pip install ninja, and add its folder to the PATH of the job.",
        threads=("deepspeedai/DeepSpeed/issues/1687", "InternLM/lmdeploy/issues/242"),
    ),
    Signature(
        name="op-build-linker",
        phrases=("cannot find -lcu", "cannot find -laio"),
        releases={"deepspeed": ""},
        cause="the linker did not find a CUDA library (or libaio) while building an operator",
        remedy="Add the folder of the library to LIBRARY_PATH and LD_LIBRARY_PATH (CUDA: "
        "$CUDA_HOME/lib64 and its stubs), or install it (libaio-dev).",
        threads=("deepspeedai/DeepSpeed/issues/6567",),
    ),
    Signature(
        name="op-build-headers",
        phrases=("No such file or directory",),
        pattern=r"fatal error: [\w./]+: No such file or directory",
        releases={"deepspeed": ""},
        cause="the compiler did not find a header while building an operator",
        remedy="Install the missing development package (the complete CUDA toolkit, python3-dev or "
        "libaio-dev), then delete ~/.cache/torch_extensions and start again.",
        threads=("deepspeedai/DeepSpeed/issues/889",),
    ),
    Signature(
        name="op-build-failed",
        phrases=("Error building extension", "ninja: build stopped: subcommand failed"),
        releases={"deepspeed": ""},
        cause="an operator of DeepSpeed could not be compiled; the compiler's error is above",
        remedy="Fix the first 'error:' above this line (g++ 9 or newer, nvcc of torch's CUDA "
        "release), delete ~/.cache/torch_extensions, and test the build alone: "
        "DS_BUILD_CPU_ADAM=1 pip install --no-build-isolation deepspeed.",
        threads=(
            "deepspeedai/DeepSpeed/issues/1846",
            "deepspeedai/DeepSpeed/issues/1127",
            "deepspeedai/DeepSpeed/issues/885",
        ),
    ),
    Signature(
        name="op-incompatible",
        phrases=("op due to it not being compatible due to hardware/software issue",),
        releases={"deepspeed": ""},
        cause="an operator of DeepSpeed does not support this machine; async_io requires libaio",
        remedy="Run ds_report for the missing requirement (apt install libaio-dev for "
        "offloading to NVMe).",
        threads=("deepspeedai/DeepSpeed/issues/6906",),
    ),
    Signature(
        name="op-torch-mismatch",
        phrases=("DeepSpeed ops were compiled and installed",),
        releases={"deepspeed": ""},
        cause="the operators were built for another release of torch or CUDA than the one that "
        "runs",
        remedy="Reinstall DeepSpeed in this environment: pip install --force-reinstall "
        "--no-build-isolation --no-cache-dir deepspeed.",
        threads=("S95Sedan/Deepspeed-Windows/issues/4", "daswer123/xtts-webui/issues/111"),
    ),
    Signature(
        name="op-library-missing",
        phrases=("cannot open shared object file", "undefined symbol", "GLIBCXX_"),
        pattern=r"ImportError: .{0,300}(?:cannot open shared object file|undefined symbol|"
        r"GLIBCXX_)",
        releases={"deepspeed": ""},
        cause="a compiled extension does not match the installed torch, CUDA or C++ library, or "
        "was only partly built",
        remedy="Delete ~/.cache/torch_extensions, reinstall the extension for this torch, and set "
        "LD_LIBRARY_PATH to the libraries of this environment.",
        threads=("deepspeedai/DeepSpeed/issues/889",),
    ),
    Signature(
        name="cpu-adam-unavailable",
        phrases=(
            "object has no attribute 'ds_opt_adam'",
            "requires the cpu_adam op, which failed to build/load",
        ),
        releases={"deepspeed": ""},
        cause="DeepSpeedCPUAdam could not build or load its operator; this line only reports the "
        "cleanup, the compiler's error is above",
        remedy="Fix the compiler error above, delete ~/.cache/torch_extensions, or use torch's "
        'optimizer with "zero_force_ds_cpu_optimizer": false.',
        threads=(
            "deepspeedai/DeepSpeed/issues/1846",
            "deepspeedai/DeepSpeed/issues/3969",
            "deepspeedai/DeepSpeed/issues/7061",
        ),
    ),
    Signature(
        name="deepspeed-too-old-for-torch",
        phrases=("cannot import name 'log' from 'torch.distributed.elastic",),
        releases={"deepspeed": "<0.14.1", "torch": ">=2.4.0"},
        cause="DeepSpeed 0.14.0 and older import a name that torch 2.4 removed",
        remedy="Run pip install -U deepspeed.",
        threads=(
            "deepspeedai/DeepSpeed/issues/5337",
            "hiyouga/LlamaFactory/issues/5153",
            "huggingface/alignment-handbook/issues/180",
        ),
    ),
    Signature(
        name="stale-build-lock",
        phrases=(
            "as PyTorch extensions root...",
            "Lock file exists in build directory",
            "Waited on lock file",
        ),
        role=Role.STUCK,
        releases={"torch": ""},
        cause=_LOCKED,
        remedy=_DELETE_LOCK,
        threads=(
            "deepspeedai/DeepSpeedExamples/issues/302",
            "huggingface/transformers/issues/26015",
            "lucidrains/DALLE-pytorch/issues/172",
        ),
    ),
    Signature(
        name="stale-build-lock-interrupted",
        phrases=("KeyboardInterrupt",),
        frame=r"torch/utils/file_baton\.py",
        releases={"torch": ""},
        cause=_LOCKED,
        remedy=_DELETE_LOCK,
        threads=("huggingface/transformers/issues/26015",),
    ),
)
