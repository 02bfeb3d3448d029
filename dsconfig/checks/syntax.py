"""Documentation pages for the reader's findings.

The reader (``dsconfig.source``) reports them with the document; these checks report nothing.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect


@rule("DSC001", Effect.REFUSED)
def unreadable_input(config: Context) -> Iterator[Finding]:
    """Unreadable input

    The file is missing, a directory, not UTF-8 text, larger than 64 MiB or nested deeper than 400
    levels, or a YAML file names a missing config. `dsconfig validate` exits with 2.

    with: name="/no/such/ds_config.json"
    bad: /no/such/ds_config.json
    with:
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC002", Effect.REFUSED)
def syntax_error(config: Context) -> Iterator[Finding]:
    """Syntax error

    The text is neither JSON nor HJSON. DeepSpeed reads HJSON, which allows comments, unquoted keys,
    and trailing or missing commas. Several syntax errors are reported at once; other rules run
    after they are fixed.

    bad:
        {
          "train_batch_size": 8,,
          "fp16" = {"enabled": true}
        }
    good:
        {
          "train_batch_size": 8,
          "fp16": {"enabled": true}
        }
    """
    yield from ()


@rule("DSC003", Effect.REFUSED, also=(Effect.ALTERED,))
def duplicate_key(config: Context) -> Iterator[Finding]:
    """Duplicate key

    DeepSpeed rejects the file. Strict JSON readers, such as transformers and accelerate, silently
    keep the last value. So do DeepSpeed for base64 input and Python for a dict literal; there the
    effect is `altered`.

    bad: {"train_batch_size": 8, "train_batch_size": 16}
    good: {"train_batch_size": 16}
    """
    yield from ()


@rule("DSC004", Effect.REFUSED)
def empty_config(config: Context) -> Iterator[Finding]:
    """Empty config

    The file contains only whitespace and comments. DeepSpeed reads `{}` and rejects it because no
    batch size is set; strict JSON readers raise a syntax error.

    bad:
        // nothing yet
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC005", Effect.REFUSED)
def not_an_object(config: Context) -> Iterator[Finding]:
    """Config is not an object

    The root is a list or a single value; every program requires an object.

    bad:
        ["train_batch_size", 8]
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC006", Effect.ALTERED)
def unquoted_string(config: Context) -> Iterator[Finding]:
    """Unquoted string includes punctuation or a comment

    In HJSON, an unquoted value that is not a number, `true`, `false` or `null` is a string up to
    the end of its line: `False,` is the string "False,", which counts as true.

    bad:
        {
          "train_batch_size": 8,
          "prescale_gradients": False,
          "fp16": {}
        }
    good:
        {
          "train_batch_size": 8,
          "prescale_gradients": false,
          "fp16": {}
        }
    """
    yield from ()


@rule("DSC007", Effect.ALTERED, applies_to=lambda runtime: runtime.reads_hjson)
def nan_or_infinity(config: Context) -> Iterator[Finding]:
    """Unquoted NaN or Infinity

    JSON has no such numbers. Python's `json` reads a float and DeepSpeed a string, so programs read
    different values.

    bad:
        {
          "train_batch_size": 8,
          "gradient_clipping": Infinity
        }
    good:
        {
          "train_batch_size": 8,
          "gradient_clipping": 1.0
        }
    """
    yield from ()


@rule("DSC008", Effect.NOTE)
def template_file(config: Context) -> Iterator[Finding]:
    """Template with placeholders

    The file contains placeholders such as `${BATCH}`, `{{ batch }}` or `BATCH_SIZE`, which another
    program fills in. Their values are not checked, and rules that compute with values are skipped.

    bad:
        {
          "train_batch_size": ${BATCH}
        }
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC009", Effect.REFUSED, also=(Effect.ALTERED, Effect.NOTE))
def no_config_inside(config: Context) -> Iterator[Finding]:
    """No ds_config in the file

    A YAML or Python file neither contains nor names a ds_config. YAML files are searched for
    `deepspeed_config_file` (accelerate), `deepspeed`, `deepspeed_config` and `ds_config`, Python
    files for a dict literal with keys of a ds_config. Settings of accelerate's DeepSpeed plugin are
    checked as the config that accelerate generates from them. A `note` for a file that trains
    without DeepSpeed, or with a config that is part of the trainer. `altered` for a script whose
    launcher turns DeepSpeed off (`accelerate launch --multi_gpu`).

    with: name="train.yaml"
    bad:
        model: gpt2
    good:
        deepspeed: {train_batch_size: 8}
    """
    yield from ()


@rule("DSC012", Effect.REFUSED, also=tuple(Effect))
def wrong_kind_of_file(config: Context) -> Iterator[Finding]:
    """File is not a ds_config

    It is a file of another program: a GPT-NeoX or Megatron config, TrainingArguments, a model
    config, an accelerate config or a JSON Schema. One finding replaces those for its keys and has
    the effect of the most severe of them.

    bad: {"output_dir": "out", "num_train_epochs": 3, "per_device_train_batch_size": 4}
    good: {"train_micro_batch_size_per_gpu": 4}
    """
    yield from ()


@rule("DSC013", Effect.REFUSED, also=tuple(Effect)[1:])
def large_integer(config: Context) -> Iterator[Finding]:
    """Integer outside the range of a float

    The largest float is 1.8e308. Python reads larger integers of up to 4,300 digits but raises an
    OverflowError when it computes with them and a float. dsengine rejects the config. DeepSpeed
    accepts the value for half of its keys, and the effect is that of a smaller integer. It rejects
    the value where it expects another type or converts it to a float, as for `fp16.loss_scale`.

    with: name="train.py"
    bad:
        ds_config = {
            "train_batch_size": 8,
            "fp16": {"enabled": True, "loss_scale": (10**100) ** 4},
        }
    good:
        ds_config = {"train_batch_size": 8, "fp16": {"enabled": True, "loss_scale": 2**16}}
    """
    yield from ()


@rule("DSC010", Effect.INERT)
def unused_ignore(config: Context) -> Iterator[Finding]:
    """Unused ignore

    The ignored rule reports nothing here; the ignore would hide later findings. Determined by
    checking the file for all programs, because some rules do not apply to all of them.

    with: runtime=None
    bad: {"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC999"]}}
    with:
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC011", Effect.INERT)
def malformed_ignore(config: Context) -> Iterator[Finding]:
    """Malformed `$dsconfig` section

    It has no effect.

    bad: {"train_batch_size": 8, "$dsconfig": {"ignore": "DSC412"}}
    good: {"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC818"]}}
    """
    yield from ()


@rule("DSC014", Effect.ALTERED)
def blank_after_backslash(config: Context) -> Iterator[Finding]:
    """Blank after the backslash at the end of a line

    In a shell script only a backslash directly before the end of the line continues a command.
    With a blank between them the shell ends the command there, starts the training without the
    options that follow, and then reports `--option: command not found`.

    with: name="train.sh"
    bad:
        deepspeed train.py --num_train_epochs 1 \\\x20
          --deepspeed ds.json
    good:
        cat > ds.json <<END
        {"train_batch_size": 8}
        END
        deepspeed train.py --deepspeed ds.json
    """
    yield from ()
