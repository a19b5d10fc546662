"""One W&B run for one job, in all of its restarts."""

import os

import wandb


class Tracker:
    def __init__(self):
        os.environ.setdefault("WANDB_RUN_ID", os.environ["DDPJOB_JOB_UID"])  # same in all restarts
        os.environ.setdefault("WANDB_RESUME", "allow")  # a new run, or that of an earlier start
        self.run = wandb.init(project="digits")

    def log(self, step, **metrics):
        self.run.log(metrics, step=step)  # W&B ignores a step below its newest one

    def finish(self):
        self.run.finish()
