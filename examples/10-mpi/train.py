"""MPI with mpi4py: messages from one to one, broadcasts, and training that averages by hand.

Each epoch every process computes the gradient of its share, the first one gathers and averages
them, and broadcasts what has been learned. Nothing here knows how the processes were started.
"""

import argparse
import os

import numpy as np
from mpi4py import MPI

SAVED = "weights.npz"
WANTED = np.array([3.0, -2.0, 1.0])


def say(text):
    print(text, flush=True)


def point_to_point(comm):
    """A ring: each sends to the next one, and receives from the one before."""
    rank, size = comm.rank, comm.size
    sent = {"from": rank, "square": rank * rank}
    heard = comm.sendrecv(sent, dest=(rank + 1) % size, source=(rank - 1) % size)
    say(f"rank {rank} of {size} heard {heard['square']} from {heard['from']}")


def broadcast(comm):
    """Send the value of the first process to all."""
    values = np.arange(4.0) if comm.rank == 0 else np.empty(4)
    comm.Bcast(values)
    say(f"rank {comm.rank} of {comm.size} has {values.tolist()}")


def begin():
    """Load the earlier state on the first process, if there is one."""
    if not os.path.exists(SAVED):
        return 0, np.zeros(3)
    with np.load(SAVED) as saved:
        return int(saved["epoch"]), saved["weights"]


def save(epoch, weights):
    with open(SAVED + ".new", "wb") as file:
        np.savez(file, epoch=epoch, weights=weights)
    os.replace(SAVED + ".new", SAVED)


def train(comm, epochs, save_every):
    inputs = np.random.default_rng(0).normal(size=(6000, 3))
    targets = inputs @ WANTED
    mine = np.array_split(np.arange(len(inputs)), comm.size)[comm.rank]
    done, weights = comm.bcast(begin() if comm.rank == 0 else None)
    if comm.rank == 0:
        say(f"{comm.size} processes begin after epoch {done}")
    for epoch in range(done + 1, epochs + 1):
        errors = inputs[mine] @ weights - targets[mine]
        gradient = inputs[mine].T @ errors / len(mine)
        gathered = np.empty((comm.size, 3)) if comm.rank == 0 else None
        comm.Gather(gradient, gathered)
        if comm.rank == 0:
            weights -= 0.05 * gathered.mean(axis=0)
        comm.Bcast(weights)
        if comm.rank == 0 and epoch % save_every == 0:
            save(epoch, weights)
            say(f"epoch {epoch} | loss {np.mean(errors**2):.9f}")
    say(f"rank {comm.rank} of {comm.size} learnt " + " ".join(f"{each:.3f}" for each in weights))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=600)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()
    point_to_point(MPI.COMM_WORLD)
    broadcast(MPI.COMM_WORLD)
    train(MPI.COMM_WORLD, args.epochs, args.save_every)


if __name__ == "__main__":
    main()
