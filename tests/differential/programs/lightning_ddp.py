"""Lightning's Trainer: one process, two by subprocess, two by spawn, two by fork; validation, checkpoints, logging."""

import os
import tempfile

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Small(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, at):
        loss = self.layer(batch[0]).square().mean()
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, at):
        self.log("check", self.layer(batch[0]).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    lightning.seed_everything(1)
    data = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4) / 64), batch_size=4)
    strategies = (
        [("auto", 1), ("ddp_spawn", 2), ("ddp_fork", 2)] if "LOCAL_RANK" not in os.environ else []
    )
    for strategy, devices in [*strategies, ("ddp", 2)]:
        trainer = lightning.Trainer(
            accelerator="cpu",
            strategy=strategy,
            devices=devices,
            max_epochs=2,
            logger=False,
            enable_progress_bar=False,
            default_root_dir=tempfile.gettempdir(),
        )
        model = Small()
        trainer.fit(model, data, data)
        if trainer.is_global_zero:
            print(
                strategy,
                {
                    name: f"{value.item():.6f}"
                    for name, value in sorted(trainer.callback_metrics.items())
                },
                trainer.global_step,
            )


if __name__ == "__main__":
    main()
