"""A usual LightningModule with Lightning's DeepSpeed strategy, on the CPU."""

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import Tensor, nn

from frameworks.files import names_of


class OnCPU(CUDAAccelerator):
    """Lightning allows its strategy only on GPUs; this pretends to be one."""

    def setup_device(self, device: Any) -> None: ...

    def setup(self, trainer: Any) -> None: ...

    def teardown(self) -> None: ...

    def get_device_stats(self, device: Any) -> dict[str, Any]:
        return {}

    @staticmethod
    def parse_devices(devices: Any) -> list[int]:
        return [0]

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("cpu", 0)]

    @staticmethod
    def is_available() -> bool:
        return True


class Net(lightning.LightningModule):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 4))
        self.losses: list[float] = []

    def off(self, batch: Tensor) -> Tensor:
        return (self.layers(batch) - batch).pow(2).mean()

    def training_step(self, batch: Tensor, _: int) -> Tensor:
        loss = self.off(batch)
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Tensor, _: int) -> None:
        self.log("val", self.off(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


def loader(seed: int) -> Any:
    samples: Any = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.DataLoader(samples, batch_size=2)


def main(folder: str, stage: str, epochs: str, resume: str) -> dict[str, Any]:
    on_cpu = OnCPU()
    strategy = DeepSpeedStrategy(stage=int(stage), process_group_backend="gloo", accelerator=on_cpu)
    trainer = lightning.Trainer(
        strategy=strategy,
        devices=1,
        max_epochs=int(epochs),
        default_root_dir=folder,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    net = Net()
    before = next(Path(resume).rglob("*.ckpt")) if resume else None
    trainer.fit(net, loader(1), loader(2), ckpt_path=before)
    return {
        "losses": net.losses,
        "val": float(trainer.callback_metrics["val"]),
        "saved": Path(trainer.checkpoint_callback.best_model_path).name,
        "files": names_of(Path(folder)),
        "steps": trainer.global_step,
    }


if __name__ == "__main__":
    target, *rest = sys.argv[1:]
    Path(target).write_text(json.dumps(main(*rest)))
