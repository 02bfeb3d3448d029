"""What the reader finds before any rule is asked: pages for its codes.

The findings come with the document (``dsconfig.source``); the checks here find nothing more.
"""

from collections.abc import Iterator

from dsconfig.checks.context import Context
from dsconfig.checks.registry import rule
from dsconfig.checks.rule import Finding
from dsconfig.report import Effect


@rule("DSC001", Effect.REFUSED)
def unreadable_input(config: Context) -> Iterator[Finding]:
    """There is nothing to judge.

    The file is missing, a directory, not UTF-8 text, larger than 64 MiB or nested deeper than
    400 levels; or a YAML names a config that is not there. `dsconfig validate` exits with 2.

    with: name="/no/such/ds_config.json"
    bad: /no/such/ds_config.json
    with:
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC002", Effect.REFUSED)
def syntax_error(config: Context) -> Iterator[Finding]:
    """The text is neither JSON nor HJSON.

    Judged as DeepSpeed's reader does, which takes comments, unquoted keys, and trailing or
    missing commas. Reading goes on at the next sensible place, so that several mistakes are
    told at once; rules that judge what is missing wait until the text can be read.

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
    """A key stands twice in one object.

    DeepSpeed refuses such a file. Plain JSON readers, among them those of transformers and
    accelerate, keep the last value without a word; so does DeepSpeed for base64, and Python
    for a dict literal (there the effect is `altered`).

    bad: {"train_batch_size": 8, "train_batch_size": 16}
    good: {"train_batch_size": 16}
    """
    yield from ()


@rule("DSC004", Effect.REFUSED)
def empty_config(config: Context) -> Iterator[Finding]:
    """The file holds nothing but blanks and comments.

    DeepSpeed reads that as `{}` and stops for want of a batch size; strict JSON readers stop
    at once.

    bad:
        // nothing yet
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC005", Effect.REFUSED)
def not_an_object(config: Context) -> Iterator[Finding]:
    """The root of the config is a list or a single value, where every program wants an object.

    bad:
        ["train_batch_size", 8]
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC006", Effect.ALTERED)
def swallowed_line(config: Context) -> Iterator[Finding]:
    """Text without quotes took punctuation or a comment into the value.

    In HJSON a value without quotes that is no number, `true`, `false` or `null` is a text up
    to the end of its line: `False,` is the text "False,", which counts as true.

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


@rule("DSC007", Effect.ALTERED)
def nan_or_infinity(config: Context) -> Iterator[Finding]:
    """NaN or Infinity without quotes.

    JSON has no such numbers. Python's `json` makes a float of them, DeepSpeed's reader a text,
    so the programs disagree about the file.

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
    """The file holds placeholders such as `${BATCH}`, `{{ batch }}` or `BATCH_SIZE`.

    Some other program fills them in, so the values in their place are not judged, and rules
    that calculate with values stay silent.

    bad:
        {
          "train_batch_size": ${BATCH}
        }
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC009", Effect.REFUSED, also=(Effect.NOTE,))
def no_config_inside(config: Context) -> Iterator[Finding]:
    """A YAML or Python file neither holds nor names a ds_config.

    Looked for are `deepspeed_config_file` (accelerate), `deepspeed`, `deepspeed_config` and
    `ds_config`, and in Python a dict literal with keys of a ds_config. Settings of accelerate's
    own plugin are judged as the config that accelerate makes of them. Of a trainer's or
    accelerate's file that trains without DeepSpeed, or with a config that the trainer brings along,
    it is a `note`.

    with: name="train.yaml"
    bad:
        model: gpt2
    good:
        deepspeed: {train_batch_size: 8}
    """
    yield from ()


@rule("DSC012", Effect.REFUSED, also=tuple(Effect))
def another_kind_of_file(config: Context) -> Iterator[Finding]:
    """The file is of another program: a GPT-NeoX or Megatron config, TrainingArguments, the config
    of a model, an accelerate config or a JSON Schema.

    One finding says what it is, in the place of one for each of its keys, and with the effect of
    the gravest of those.

    bad: {"output_dir": "out", "num_train_epochs": 3, "per_device_train_batch_size": 4}
    good: {"train_micro_batch_size_per_gpu": 4}
    """
    yield from ()


@rule("DSC010", Effect.INERT)
def unused_ignore(config: Context) -> Iterator[Finding]:
    """A request to ignore a rule that finds nothing here; it would hide a later finding.

    Reported when the file is judged for all programs, because one program's view leaves rules
    asleep.

    with: runtime=None
    bad: {"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC999"]}}
    with:
    good: {"train_batch_size": 8}
    """
    yield from ()


@rule("DSC011", Effect.INERT)
def malformed_ignore(config: Context) -> Iterator[Finding]:
    """A `$dsconfig` section that is not understood, and so does nothing.

    bad: {"train_batch_size": 8, "$dsconfig": {"ignore": "DSC412"}}
    good: {"train_batch_size": 8, "$dsconfig": {"ignore": ["DSC818"]}}
    """
    yield from ()
