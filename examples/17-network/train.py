"""Measure the network between the workers: all_reduce of growing tensors, before you train."""

import argparse
import time

import torch
import torch.distributed as dist


def measure(size, repeats):
    """Return the seconds of one all_reduce of `size` bytes, the best of a few; check the sum."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    best = float("inf")
    for _ in range(repeats):
        tensor = torch.ones(size // 4, device=device)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
        if not bool((tensor == dist.get_world_size()).all()):
            raise RuntimeError(f"all_reduce of {size} bytes gave another sum")
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    world = dist.get_world_size()
    for megabytes in args.megabytes:
        size = megabytes << 20
        seconds = measure(size, args.repeats)
        # What each process sends in a ring, as NCCL's own tests count it.
        rate = size * 2 * (world - 1) / world / seconds / 1e9
        if dist.get_rank() == 0:
            print(
                f"{world} processes | {megabytes} MB | {1000 * seconds:.2f} ms | {rate:.2f} GB/s",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
