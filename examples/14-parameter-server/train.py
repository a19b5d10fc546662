"""A parameter server: trainers fetch the parameters, and send gradients, over torch's RPC.

Every worker runs this script once; ROLE has its role.
"""

import os
import threading

import torch
import torch.distributed as dist
from torch.distributed import rpc

STEPS = 1500
SAVED = "parameters.pt"
WANTED = torch.tensor([[3.0], [-2.0]])


class Server:
    """Holds the parameters; applies whatever gradients come, in their order."""

    def __init__(self):
        self.model = torch.nn.Linear(2, 1)
        if os.path.exists(SAVED):
            self.model.load_state_dict(torch.load(SAVED))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.updates = 0
        self.lock = threading.Lock()  # RPC serves several trainers at once

    def fetch(self):
        return [parameter.detach().clone() for parameter in self.model.parameters()]

    def update(self, gradients):
        with self.lock:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self.updates += 1
            if self.updates % 100 == 0:
                torch.save(self.model.state_dict(), SAVED + ".new")
                os.replace(SAVED + ".new", SAVED)
                print(f"server | {self.updates} updates", flush=True)
            return self.fetch()


SERVER = Server() if os.environ["ROLE"] == "server" else None


def fetch():
    """Runs at the server."""
    return SERVER.fetch()


def update(gradients):
    """Runs at the server."""
    return SERVER.update(gradients)


def train(server, rank):
    torch.manual_seed(rank)
    model = torch.nn.Linear(2, 1)
    values = rpc.rpc_sync(server, fetch)
    for step in range(STEPS):
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.data = value
        model.zero_grad()
        inputs = torch.randn(16, 2)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ WANTED + 1)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        values = rpc.rpc_sync(server, update, args=(gradients,))
        if (step + 1) % 300 == 0:
            print(f"trainer {rank} | step {step + 1} | loss {loss.item():.6f}", flush=True)


def main():
    role, rank, world = os.environ["ROLE"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    roles = [None] * world
    dist.all_gather_object(roles, role)
    dist.destroy_process_group()

    rpc.init_rpc(f"{role}-{rank}", rank=rank, world_size=world)
    print(f"{role} {rank} | {roles.count('trainer')} trainers", flush=True)
    if role == "trainer":
        train(f"server-{roles.index('server')}", rank)
    rpc.shutdown()  # waits for all
    if SERVER is not None:
        learnt = [f"{each:.2f}" for each in [*SERVER.model.weight[0], *SERVER.model.bias]]
        print(f"server | after {SERVER.updates} updates: {' '.join(learnt)}", flush=True)


if __name__ == "__main__":
    main()
