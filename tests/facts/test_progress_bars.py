"""Step time of a log: that of the training bar, whatever other bars were printed."""

import pytest

from dsconfig.facts import FactError, run_log
from dsconfig.facts.progress_bars import seconds_per_iteration

LOADING = """\
Downloading shards: 100%|##########| 2/2 [10:30<00:00, 315.15s/it]
Loading checkpoint shards:  50%|#####     | 1/2 [00:02<00:02,  2.10s/it]
Loading checkpoint shards: 100%|##########| 2/2 [00:04<00:00,  2.10s/it]
Tokenizing train dataset: 100%|##########| 900/900 [00:09<00:00, 95.11it/s]
"""
TRAINING = """\
  0%|          | 0/1000 [00:00<?, ?it/s]
  0%|          | 1/1000 [00:09<2:29:51,  9.00s/it]
  5%|5         | 50/1000 [01:40<31:40,  2.00s/it]
100%|##########| 1000/1000 [33:20<00:00,  1.50s/it]
"""
EVALUATION = """\
  0%|          | 0/25 [00:00<?, ?it/s]
 40%|####      | 10/25 [00:01<00:01,  8.10it/s]
100%|##########| 25/25 [00:03<00:00,  8.00it/s]
"""


def test_only_the_training_bar_is_read() -> None:
    assert seconds_per_iteration(LOADING) is None
    assert seconds_per_iteration(LOADING + TRAINING) == 2.0
    assert seconds_per_iteration(LOADING + TRAINING + EVALUATION) == 2.0
    nested = TRAINING.replace("100%|", EVALUATION + "100%|")
    assert seconds_per_iteration(nested) == 2.0
    saved = "Saving checkpoint shards: 100%|####| 3/3 [50:09<00:00, 33.00s/it]\n"
    assert seconds_per_iteration(TRAINING + saved) == 2.0


@pytest.mark.parametrize(
    "line",
    [
        "Epoch 0:  10%|#         | 10/100 [00:20<03:00,  2.00s/it, v_num=0]",
        "steps:   2%|2| 20/1000 [00:40<32:40,  2.00s/it, loss=0.2]",
        "[rank0]:  10%|#         | 10/100 [00:20<03:00,  0.50it/s]",
        "(RayTrainWorker pid=71) Train:  10%|#  | 10/100 [00:20<03:00,  2.00s/it]",
        "1|20|Loss: 1.23:  10%|#         | 10/100 [00:20<03:00,  2.00s/it]",
        "Epoch 1: 10it [00:20,  2.00s/it]",
        "  9%|9 | 9/100 [00:18<03:02,  9.00s/it]\r 10%|# | 10/100 [00:20<03:00,  2.00s/it]\r"
        " 11%|# | 11/100 [00:22<02:58,  1.00s/it]",
        "Epoch 0/2 ━━━━━━ 10/100 0:00:20 • 0:03:00 0.50it/s v_num: 0",
    ],
)
def test_training_bars_of_other_programs_are_read(line: str) -> None:
    assert seconds_per_iteration(LOADING + line) == 2.0


@pytest.mark.parametrize(
    "line",
    [
        "evaluating Epoch: 100%|####| 20/20 [00:40<00:00,  2.00s/it]",
        "(RayTrainWorker pid=71) Loading checkpoint shards: 50%|## | 1/2 [00:02<00:02, 2.10s/it]",
        "Generating train split: 50%|## | 1/2 [00:02<00:02, 2.10s/it]",
        "Fetching 3 files:  50%|## | 1/2 [00:02<00:02, 2.10s/it]",
        "0it [00:00, ?it/s]",
        " 50%|## | 1/2 [00:02<00:02, 0.00it/s]",
    ],
)
def test_other_bars_are_not_read(line: str) -> None:
    assert seconds_per_iteration(line) is None


def test_run_that_failed_in_its_first_step_has_no_step_time() -> None:
    packing = "100%|##########| 1000/1000 [00:10<00:00, 95.10it/s]\n"
    assert seconds_per_iteration(packing + "  0%|          | 0/27 [00:00<?, ?it/s]\n") is None


def test_log_with_only_other_bars_has_no_throughput(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    assert "throughput" not in run_log.from_text(LOADING).found
    path = tmp_path_factory.mktemp("log") / "train.log"
    path.write_text(LOADING)
    with pytest.raises(FactError, match="no recognized lines"):
        run_log.from_path(path)
