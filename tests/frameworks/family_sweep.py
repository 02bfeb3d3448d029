"""All model families of transformers, initialized, trained and saved at stage 3.

python -m frameworks.family_sweep run [FAMILY]...   resumes an interrupted run
python -m frameworks.family_sweep record            store the outcomes for the page
python -m frameworks.family_sweep page              write docs/internals/families.md

Each family runs in its own process, forked from one that has imported the common modules; its
outcome is a line of runs/families.jsonl.
"""

import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

from frameworks.running import ROOT
from outcomes import add_outcome, read_outcomes
from suite.limits import scaled

RUNS = Path(os.environ.get("FAMILIES_RUNS", ROOT / "runs" / "families.jsonl"))
RECORD = ROOT / "tests" / "oracle" / "family_sweep.json"
PAGE = ROOT / "docs" / "internals" / "families.md"
SECONDS = 60.0
MEMORY = 8 * 2**30
KINDS = {
    "trained": "initialized, trained for two steps and saved at stage 3",
    "initialized": "initialized and saved; its inputs are unknown here",
    "not built": "transformers cannot build a small model from the configuration only",
    "failed": "fails with dsengine, but not with transformers alone",
}
CONFIG: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
}


HEADS = {
    "sequence": "CausalLM",
    "seq2seq": "Seq2SeqLM",
    "speech": "SpeechSeq2Seq",
    "masked": "MaskedLM",
    "classification": "SequenceClassification",
    "tokens": "TokenClassification",
}
"""By kind of models whose sequences are divided, the name of transformers' automatic class."""


def families() -> list[str]:
    from transformers.models.auto import configuration_auto

    return sorted(configuration_auto.CONFIG_MAPPING_NAMES)


def families_with_head(kind: str) -> list[str]:
    return sorted(automatic_class(kind)._model_mapping._model_mapping)


def automatic_class(kind: str) -> Any:
    import transformers

    return getattr(transformers, f"AutoModelFor{HEADS[kind]}")


def outcome(family: str, folder: str) -> tuple[str, str]:
    """Return a family's outcome (one of ``KINDS``) and the reason, in this process."""
    import dsengine
    from frameworks.families import loss_of, small_model

    try:
        model = small_model(family)
        cast(Any, model.config).save_pretrained(folder)  # validates the reduced sizes
    except BaseException as error:
        return "not built", error_text(error)
    inputs: dict[str, Any] | None = None
    why, config = "all its weights are frozen", CONFIG.copy()
    if any(param.requires_grad for param in model.parameters()):
        inputs, why = _inputs(model)
    else:
        del config["optimizer"]
    engine, *_ = dsengine.initialize(model=model, config=config)
    if inputs is not None:
        for _ in range(2):
            engine.backward(loss_of(engine(**inputs)))
            engine.step()
    engine.save_16bit_model(folder)
    assert any(Path(folder).glob("*.safetensors"))
    return ("trained", "") if inputs is not None else ("initialized", why)


def _inputs(model: Any) -> tuple[Any, str]:
    """Return arguments for which the model's loss depends on its weights, without an engine."""
    import torch

    from frameworks.families import loss_of

    model.train()
    why = ""
    for inputs in _guesses(model):
        try:
            torch.manual_seed(0)
            loss_of(model(**inputs)).backward()
        except Exception as error:
            why = why or error_text(error)
        else:
            model.zero_grad()
            return inputs, ""
    model.zero_grad()
    return None, why


def _guesses(model: Any) -> Iterator[dict[str, Any]]:
    import torch

    from frameworks.families import inputs_of

    yield inputs_of(model, 0)
    tokens = torch.arange(3, 35).view(2, 16)
    yield {"input_ids": tokens}
    yield {"input_ids": tokens, "decoder_input_ids": tokens}
    images = [torch.ones(2, 3, size, size) for size in (32, 64)]
    yield from ({"pixel_values": image} for image in images)
    yield from ({"input_ids": tokens, "pixel_values": image} for image in images)
    yield {"pixel_values": images[0], "decoder_input_ids": tokens}
    yield {"input_values": torch.linspace(-1, 1, 8000).view(2, 4000)}
    for bins in (80, 128):
        yield {"input_features": torch.ones(2, bins, 3000), "decoder_input_ids": tokens}
        yield {"input_features": torch.ones(2, 100, bins)}


def error_text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    first = re.sub(r" from '/[^']*'", "", lines[0]) if lines else ""  # specific to this machine
    return f"{type(error).__name__}: {first}"[:160]


def run(names: Iterable[str]) -> None:
    """Run families in sequence, except those with an outcome."""
    import transformers  # noqa: F401

    import dsengine.loop.initialization  # noqa: F401

    done = read()
    for family in names:
        if family not in done:
            add_outcome(RUNS, family, *_run_in_process(family))


def _import_common_modules() -> None:
    """Import the modules that one family needs, which takes most of the time."""
    with tempfile.TemporaryDirectory() as folder:
        imported = Path(folder) / "imported"
        if (process := os.fork()) == 0:
            _answer("vit", folder, Path(folder) / "answer", imported)
        os.waitpid(process, 0)
        for name in json.loads(imported.read_text()):
            with suppress(Exception):
                import_module(name)


def read() -> dict[str, tuple[str, str]]:
    return read_outcomes(RUNS)


def _run_in_process(family: str) -> tuple[str, str]:
    """Run ``outcome`` in its own process, which may die or time out."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        if (process := os.fork()) == 0:
            _answer(family, folder, answer)
        started = time.monotonic()
        while os.waitpid(process, os.WNOHANG)[0] == 0:
            if time.monotonic() - started > scaled(SECONDS):
                os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        if answer.exists():
            kind, why = json.loads(answer.read_text())
            return kind, why
    slow = time.monotonic() - started > scaled(SECONDS)
    return "not built", "not small: takes longer than a minute" if slow else "its process died"


def _answer(family: str, folder: str, answer: Path, imported: Path | None = None) -> None:
    """Write the outcome to ``answer`` and imported modules to ``imported``; never returns."""
    import torch.distributed as dist

    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        store = dist.FileStore(f"{folder}/store", 1)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        (Path(folder) / "saved").mkdir()
        found = outcome(family, f"{folder}/saved")
    except BaseException as error:
        places = traceback.extract_tb(error.__traceback__)
        inner = [frame for frame in places if "/dsengine/" in frame.filename]
        place = f" ({Path(inner[-1].filename).name}, {inner[-1].name})" if inner else ""
        found = ("failed", error_text(error) + place)
    if imported is not None:
        imported.write_text(json.dumps(list(sys.modules)))
    temporary = answer.with_suffix(".new")
    temporary.write_text(json.dumps(found))
    temporary.replace(answer)
    os._exit(0)


def page(record: dict[str, Any]) -> str:
    rows: dict[str, list[str]] = record["families"]
    counts = Counter(kind for kind, _ in rows.values())
    lines = [
        "# Families of models at stage 3",
        "",
        *wrap(
            f"{len(rows)} of the {record['of']} configuration classes of transformers "
            f"{record['transformers']}, with sizes reduced by attribute name only, on one CPU rank "
            "at stage 3 in fp32. Generated in tests/ by `python -m frameworks.family_sweep`; "
            "thirty-one of them train on two ranks at every stage in `make test-all`.",
            100,
        ),
        "",
        "| | families | |",
        "|---|---|---|",
        *(f"| {kind} | {counts[kind]} | {what} |" for kind, what in KINDS.items()),
    ]
    for kind in ("failed", "initialized", "not built"):
        members = {name: why for name, (found, why) in rows.items() if found == kind}
        lines += ["", f"## {kind.capitalize()}", "", "| family | reason |", "|---|---|"]
        lines += [f"| {name} | {cell(why)} |" for name, why in sorted(members.items())]
    trained = sorted(name for name, (kind, _) in rows.items() if kind == "trained")
    return "\n".join([*lines, "", "## Trained", "", *wrap(", ".join(trained), 120)]) + "\n"


def cell(why: str) -> str:
    return why.replace("|", "\\|").replace("<", "\\<")


def record() -> None:
    import transformers

    data: dict[str, Any] = {"transformers": transformers.__version__, "of": len(families())}
    data["families"] = dict(sorted(read().items()))
    RECORD.write_text(json.dumps(data, indent=0) + "\n", "utf-8")


def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text("utf-8"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *names]:
            run(names or families())
        case ["record"]:
            record()
        case ["page"]:
            PAGE.write_text(page(recorded()), "utf-8")
        case _:
            raise SystemExit(__doc__)
