"""Saving, loading and converting checkpoints."""

from dsconfig.failures.signature import Signature

SIGNATURES = (
    Signature(
        name="checkpoint-incomplete",
        phrases=("_optim_states.pt' under", "didn't get saved by one or more processes"),
        pattern=r"Expected (?P<wanted>\d+) of '\*_optim_states.pt'.{0,300}found (?P<found>\d+)|"
        r"get saved by",
        releases={"deepspeed": ""},
        cause="the checkpoint has {found} optimizer files instead of {wanted}: files of an "
        "older run with other ranks are in the folder, or ranks did not save",
        remedy="Delete the files of the older run, collect the files of all nodes in one "
        "folder, and save with all ranks: `dsconfig checkpoint verify DIR` lists what is "
        "missing.",
        threads=("deepspeedai/DeepSpeed/issues/1793", "huggingface/transformers/issues/12427"),
    ),
    Signature(
        name="checkpoint-files-missing",
        phrases=(
            "can't find model states file at",
            "model_states.pt'",
            "optim_states.pt'",
            "Unable to find 'latest' file",
            "find *_optim_states.pt",
        ),
        pattern=r"can't find|No such file|Unable to find 'latest'",
        releases={"deepspeed": ""},
        cause="files of the checkpoint are missing: it was saved by one rank only, on another "
        "node, or with another stage",
        remedy="Call engine.save_checkpoint on all ranks; collect the files of all nodes. "
        "`dsconfig checkpoint verify DIR` lists what is missing.",
        threads=(
            "hiyouga/LlamaFactory/issues/1253",
            "deepspeedai/DeepSpeed/issues/7546",
            "deepspeedai/DeepSpeed/issues/2737",
        ),
    ),
    Signature(
        name="zero-to-fp32-output-folder",
        phrases=("RuntimeError: Parent directory",),
        pattern=r"\A(?>.*?Parent directory ).* does not exist",
        releases={"deepspeed": ">=0.15.3"},
        cause="zero_to_fp32.py of DeepSpeed 0.15.3 and newer writes a folder of shards; an "
        "output like pytorch_model.bin is used as the name of that folder",
        remedy="Pass an output folder: python zero_to_fp32.py . out --safe_serialization.",
        threads=("JIA-Lab-research/LISA/issues/155",),
    ),
    Signature(
        name="zero-to-fp32-mismatch",
        phrases=("numels out of",),
        pattern=r"consumed (?P<used>\d+) numels out of (?P<all>\d+)",
        releases={"deepspeed": ""},
        cause="zero_to_fp32.py used {used} of {all} values: the shards belong to different "
        "runs, or the model changed",
        remedy="Convert a checkpoint whose files are all of one run: `dsconfig checkpoint "
        "verify DIR`.",
        threads=("deepspeedai/DeepSpeed/issues/1317", "deepspeedai/DeepSpeed/pull/1372"),
    ),
    Signature(
        name="converted-keys-do-not-match",
        phrases=(
            "Missing key(s) in state_dict",
            "Unexpected key(s) in state_dict",
            "KeyError: 'base_model.",
        ),
        cause="the names of the weights differ from the model's: adapters, a wrapper prefix "
        "(module., base_model.) or a file that is not a state dict",
        remedy="Load the weights into the same class that was trained (adapters first), or "
        "remove the prefix from the names.",
        threads=("hiyouga/LlamaFactory/issues/496", "daooshee/QuadPrior/issues/2"),
    ),
    Signature(
        name="checkpoint-world-size",
        phrases=("The checkpoint being loaded used a DP",),
        pattern=r"used a DP(?: world size of (?P<old>\d+).{0,40}world size is (?P<new>\d+))?",
        releases={"deepspeed": ""},
        cause="the checkpoint was saved by {old} ranks and is loaded by {new}: optimizer shards "
        "cannot be redistributed",
        remedy="Use the same number of ranks, convert it to a universal checkpoint "
        '(ds_to_universal.py) and set "checkpoint": {"load_universal": true}, or load the weights '
        "only.",
        threads=(
            "deepspeedai/DeepSpeed/issues/6441",
            "deepspeedai/DeepSpeed/issues/2898",
            "deepspeedai/DeepSpeed/issues/3810",
            "deepspeedai/Megatron-DeepSpeed/issues/439",
        ),
    ),
    Signature(
        name="checkpoint-release",
        phrases=("Empty ds_version in checkpoint", "is not backwards compatible"),
        pattern=r"Empty ds_version|ZeRO stage 1 changed in",
        releases={"deepspeed": ""},
        cause="the checkpoint was written by a DeepSpeed release whose format this one does not "
        "read",
        remedy="Load it with the release that wrote it and save the weights, or train with that "
        "release.",
        threads=("deepspeedai/DeepSpeed/pull/1042",),
    ),
    Signature(
        name="weights-only-load",
        phrases=("Weights only load failed", "was not an allowed global by default"),
        releases={"torch": ">=2.6.0"},
        cause="torch 2.6 and newer load only plain tensors by default, and the checkpoint "
        "contains other objects (DeepSpeed's LossScaler, for example)",
        remedy="Update DeepSpeed and transformers. For a checkpoint you trust: "
        "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.",
        threads=(
            "modelscope/ms-swift/issues/5808",
            "axolotl-ai-cloud/axolotl/issues/2634",
            "deepspeedai/DeepSpeed/issues/8500",
            "allenai/open-instruct/issues/673",
        ),
    ),
    Signature(
        name="checkpoint-file-damaged",
        phrases=(
            "PytorchStreamReader failed",
            "filename 'storages' not found",
            "invalid header or archive is corrupted",
        ),
        releases={"torch": ""},
        cause="a checkpoint file is incomplete or damaged: the run ended while it was written, "
        "or the download stopped",
        remedy="Use the previous checkpoint or download the file again; `dsconfig checkpoint "
        "verify DIR` names damaged files.",
        threads=("comp-well-org/ESI/issues/3", "shuchenweng/CT2/issues/16"),
    ),
    Signature(
        name="checkpoint-not-found",
        phrases=("Can't find a valid checkpoint at", "failed to resume from checkpoint"),
        releases={"transformers": ""},
        cause="the folder has no DeepSpeed checkpoint: only the model was saved "
        "(save_only_model), or the path is of the parent folder",
        remedy="Pass the folder checkpoint-N that contains global_stepN; without it, load the "
        "weights with from_pretrained.",
        threads=("huggingface/open-r1/issues/553", "modelscope/ms-swift/issues/1132"),
    ),
    Signature(
        name="disk-full",
        phrases=("No space left on device", "PytorchStreamWriter failed writing file"),
        cause="the disk was full while a checkpoint was written; the last checkpoint is incomplete",
        remedy="Free space or write elsewhere, keep fewer checkpoints, and delete the "
        "incomplete one. A checkpoint with optimizer states has about 14 bytes per parameter.",
        remedies={
            "transformers": "Free space or write elsewhere, and set save_total_limit (or "
            "save_only_model=True) in TrainingArguments; delete the incomplete checkpoint."
        },
        threads=(
            "databrickslabs/dolly/issues/139",
            "zai-org/ChatGLM-6B/issues/1166",
            "hiyouga/LlamaFactory/issues/5155",
        ),
    ),
    Signature(
        name="tied-weights-on-save",
        phrases=("Some tensors share memory", "to be saved contained shared tensors"),
        cause="safetensors refuses tensors that share memory: tied embeddings, or weights that are "
        "views of one flat buffer",
        remedy="Save with model.save_pretrained (which handles tied weights) or safetensors' "
        "save_model; clone tensors of a state dict before saving.",
        remedies={
            "transformers": "Save with trainer.save_model(). If the class ties weights that it "
            "does not declare in _tied_weights_keys, pass save_safetensors=False."
        },
        threads=(
            "safetensors/safetensors/issues/202",
            "safetensors/safetensors/issues/304",
            "huggingface/transformers/pull/29906",
            "kohya-ss/sd-scripts/issues/629",
            "ariG23498/gemma3-object-detection/issues/48",
        ),
    ),
)
