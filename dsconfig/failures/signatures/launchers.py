"""Launchers: hostfiles, ssh, and their reports about failed ranks."""

from dsconfig.failures.signature import Role, Signature

_FIRST = (
    "Find the error of the rank that the report names: it is above this line, or in the log of "
    "that rank. If there is none: torchrun --tee 3 --log-dir logs (deepspeed "
    "--enable_each_rank_log logs)."
)

SIGNATURES = (
    Signature(
        name="hostfile-entry",
        phrases=(
            "Hostfile contains",
            "Hostfile is empty or not formatted",
            "Hostfile is not formatted",
        ),
        releases={"deepspeed": ""},
        cause="the hostfile has a line that is not `HOST slots=N`, or a host twice",
        remedy="Write one line per host: worker-1 slots=8.",
        threads=("deepspeedai/DeepSpeed/issues/3669", "deepspeedai/DeepSpeed/issues/2612"),
    ),
    Signature(
        name="host-not-in-hostfile",
        phrases=("not found in hostfile", "specified on host '"),
        pattern=r"Hostname '[^']*' not found in hostfile|No slot '",
        releases={"deepspeed": ""},
        cause="--include or --exclude names a host or GPU that the hostfile does not contain",
        remedy="Use the names of the hostfile in --include and --exclude (localhost without one).",
        threads=("deepspeedai/DeepSpeed/issues/4993",),
    ),
    Signature(
        name="ssh-unreachable",
        phrases=("was not reachable via ssh", "ssh: connect to host", "ssh: Could not resolve"),
        cause="the launcher cannot log in to a host of the hostfile",
        remedy="Check the name and port of the host, and that sshd runs there. Set up ssh keys "
        "between all nodes (ssh HOST hostname must work without a prompt), or start each node "
        "yourself with --no_ssh --node_rank N --master_addr ADDRESS.",
        remedies={
            "accelerate": "Set up ssh keys between all nodes, or use deepspeed_multinode_launcher: "
            "standard and start accelerate on each node."
        },
        threads=("deepspeedai/DeepSpeed/issues/4907", "deepspeedai/DeepSpeed/pull/1832"),
    ),
    Signature(
        name="ssh-denied",
        phrases=("Permission denied (publickey", "Host key verification failed"),
        cause="ssh refused the connection to a node: no key, or an unknown host key",
        remedy="Copy the key to every node (ssh-copy-id HOST), also for localhost, and accept "
        "each host key once.",
        threads=("deepspeedai/DeepSpeed/issues/5709", "deepspeedai/DeepSpeed/issues/579"),
    ),
    Signature(
        name="ssh-failed",
        phrases=("ssh exited with exit code 255",),
        role=Role.CONSEQUENCE,
        cause="ssh could not connect to a node, or its connection was lost",
        remedy="See the error of ssh above it; without one, test ssh HOST hostname from this node.",
        threads=("deepspeedai/DeepSpeed/issues/579",),
    ),
    Signature(
        name="launcher-not-installed",
        phrases=("' not installed.", "pdsh: command not found"),
        pattern=r"launcher '(?P<launcher>\w+)' not installed|pdsh: command not found",
        releases={"deepspeed": ""},
        cause="the program that starts the other nodes (pdsh by default) is not installed",
        remedy="Install pdsh (apt install pdsh), or use --launcher openmpi, or --no_ssh on each "
        "node.",
        threads=("stanford-crfm/mistral/issues/38",),
    ),
    Signature(
        name="pdsh-ssh-port",
        phrases=("KeyError: 'PDSH_SSH_ARGS_APPEND'",),
        releases={"deepspeed": "<0.14.1"},
        cause="--ssh_port of DeepSpeed before 0.14.1 requires the variable PDSH_SSH_ARGS_APPEND",
        remedy="Run export PDSH_SSH_ARGS_APPEND='' before the launcher, or update DeepSpeed.",
        threads=("deepspeedai/DeepSpeed/pull/5318",),
    ),
    Signature(
        name="stopped-from-outside",
        phrases=(
            "DUE TO TIME LIMIT",
            "DUE TO PREEMPTION",
            "DUE TO NODE FAILURE",
            "slurmstepd: error: ***",
            "PBS: job killed",
            "TERM_RUNLIMIT",
            "Received 15 death signal",
        ),
        role=Role.CONSEQUENCE,
        cause="the scheduler, or another program, stopped the job: a time limit, preemption or a "
        "lost node; the run printed no error of its own",
        remedy="If the run made progress, resume from the last checkpoint and request more time, "
        "or save more often. If it made none, it waited: see the line above this one, and start "
        "it again with py-spy dump --pid PID on each rank.",
        threads=(
            "ZettaAI/zetta_utils/issues/671",
            "PrimeIntellect-ai/prime-rl/issues/1360",
            "IGNF/myria3d/issues/123",
        ),
    ),
    Signature(
        name="elastic-summary",
        phrases=(
            "failed (exitcode:",
            "ChildFailedError",
            "Root Cause (first observed failure)",
            "exitcode  :",
        ),
        pattern=r"local_rank: (?P<rank>\d+) \(pid|ChildFailedError|Root Cause|exitcode  : (?!0)",
        role=Role.CONSEQUENCE,
        releases={"torch": ""},
        cause="torchrun reports that a rank failed; its error is not part of this report",
        remedy=_FIRST,
        threads=(
            "Facico/Chinese-Vicuna/issues/113",
            "meta-pytorch/torchtune/issues/1710",
            "hpcaitech/ColossalAI/issues/3172",
        ),
    ),
    Signature(
        name="deepspeed-launcher-report",
        phrases=("exits with return code =",),
        pattern=r"exits with return code = -?[1-9]\d*",
        role=Role.CONSEQUENCE,
        releases={"deepspeed": ""},
        cause="the deepspeed launcher reports that a rank failed; its error is not part of this "
        "report",
        remedy=_FIRST,
        threads=("deepspeedai/DeepSpeed/issues/5302",),
    ),
    Signature(
        name="rank-terminated",
        phrases=("closing signal SIGTERM", "Killing subprocess", "Signal 15 (SIGTERM) received"),
        role=Role.CONSEQUENCE,
        cause="the launcher stopped the remaining ranks",
        remedy=_FIRST,
        threads=("deepspeedai/DeepSpeed/issues/5302",),
    ),
)
