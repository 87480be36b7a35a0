# ranks: 2
"""The Trainer of transformers on a tiny BERT: evaluation, checkpoints, and going on from the last of them."""

import os
import tempfile

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
config = BertConfig(
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    vocab_size=50,
    num_labels=2,
)
rows = [
    {"input_ids": torch.arange(8) + at % 20, "labels": torch.tensor(at % 2)} for at in range(32)
]
folder = os.path.join(tempfile.gettempdir(), "trained")


def make(steps):
    options = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=4,
        logging_steps=2,
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        gradient_accumulation_steps=2,
    )
    return Trainer(
        BertForSequenceClassification(config), options, train_dataset=rows, eval_dataset=rows
    )


for steps, again in ((4, False), (8, True)):
    trainer = make(steps)
    trainer.train(resume_from_checkpoint=again or None)
    for entry in trainer.state.log_history:
        print(
            os.environ["RANK"],
            {
                name: f"{value:.5f}"
                for name, value in entry.items()
                if "loss" in name or name in ("step", "grad_norm", "learning_rate")
            },
        )
