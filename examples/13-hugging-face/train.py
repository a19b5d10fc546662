"""Hugging Face's Trainer as its documentation shows it: resumes from `get_last_checkpoint`.

The model is a tiny GPT-2 from a config, the text are number series: nothing is downloaded.
"""

import os

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

NUMBERS, LENGTH, STEPS = 32, 16, 8


class Series(torch.utils.data.Dataset):
    """Number series modulo 32: each by its first number and its step."""

    def __init__(self, held_out):
        self.which = [i for i in range(NUMBERS * STEPS) if (i % 8 == 3) == held_out]

    def __len__(self):
        return len(self.which)

    def __getitem__(self, at):
        step, first = divmod(self.which[at], NUMBERS)
        ids = (first + (1 + step) * torch.arange(LENGTH)) % NUMBERS
        return {"input_ids": ids, "labels": ids}


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    torch.set_num_threads(1)
    set_seed(args.seed)
    checkpoint = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    config = GPT2Config(
        vocab_size=NUMBERS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Series(held_out=False),
        eval_dataset=Series(held_out=True),
    )
    if trainer.is_world_process_zero():
        print(f"{args.world_size} processes begin from {checkpoint}", flush=True)
    trainer.train(resume_from_checkpoint=checkpoint)
    loss = trainer.evaluate()["eval_loss"]
    if trainer.is_world_process_zero():
        print(f"after step {trainer.state.global_step}: held-out loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
