"""A loop around accelerate that leaves all settings to its launcher."""

from typing import Any

import torch
from accelerate import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
samples: Any = torch.ones(8, 4)
loader = torch.utils.data.DataLoader(samples, batch_size=2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    accelerator.backward(model(batch).pow(2).mean())
    optimizer.step()
    optimizer.zero_grad()
plugin = accelerator.state.deepspeed_plugin
print("trained on", type(model).__module__, "at stage", plugin.zero_stage)
