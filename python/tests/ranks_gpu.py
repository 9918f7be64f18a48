# SPDX-License-Identifier: Apache-2.0
"""ranks_gpu.py - attn.distributed on tensors of one GPU: one rank with NCCL, then several ranks that
share the GPU. NCCL refuses these, so their messages are copied to the host and go through gloo: all
else, kernels, merges and streams, is as with NCCL.

    python3 ranks_gpu.py [cpu]      exit code 1 if a rank fails; cpu: a rehearsal without a GPU
"""

import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import attn.distributed as ad
import ranks

SHARING = (2, 3)
ROWS, DIM = 600, 64


class Arriving:
    """A message on its way into a tensor of the GPU."""

    def __init__(self, work, tensor, host):
        self.work, self.tensor, self.host = work, tensor, host

    def wait(self):
        self.work.wait()
        if self.host is not None:
            self.tensor.copy_(self.host)


def through_the_host():
    """Replaces the functions of torch.distributed that attn.distributed calls with tensors."""
    send, receive = dist.isend, dist.irecv
    all_gather, all_to_all, all_reduce = dist.all_gather, dist.all_to_all_single, dist.all_reduce

    def batch_isend_irecv(operations):
        works = []
        for one in operations:
            host = one.tensor.cpu().clone()
            if one.op is receive:
                works.append(Arriving(receive(host, one.peer, one.group, one.tag), one.tensor, host))
            else:
                works.append(Arriving(send(host, one.peer, one.group, one.tag), one.tensor, None))
        return works

    def gather(received, sent, group=None):
        hosts = [x.cpu() for x in received]
        all_gather(hosts, sent.cpu(), group=group)
        for x, host in zip(received, hosts):
            x.copy_(host)

    def exchange(received, sent, *sizes, group=None):
        host = received.cpu()
        all_to_all(host, sent.cpu(), *sizes, group=group)
        received.copy_(host)

    def reduce(x, group=None):
        host = x.cpu()
        all_reduce(host, group=group)
        x.copy_(host)

    dist.batch_isend_irecv, dist.all_gather = batch_isend_irecv, gather
    dist.all_to_all_single, dist.all_reduce = exchange, reduce


def inputs(n, rows, dtype):
    """q, k, v and dO: 2n heads over n, for ulysses."""
    heads = max(2 * n, 4)
    return tuple(ranks.draw(seed, 1, heads // (2 if seed in (2, 3) else 1), rows, DIM, dtype=dtype)
                 for seed in (1, 2, 3, 4))


def cases(n):
    for dtype in (torch.bfloat16, torch.float32):
        for method in ranks.METHODS:
            for what, options in (("", {}), ("causal", {"causal": True}),
                                  ("window", {"causal": True, "window": (100, -1)})):
                ranks.compare(f"{dtype} {what}", inputs(n, ROWS + n, dtype), method, options)
    q, k, v, _ = inputs(n, 64, torch.bfloat16)
    ranks.same("decode", ad.decode(q[:, :, :1], *(ad.shard(x, 2) for x in (k, v))),
               ranks.attn.attention(q[:, :, :1], k, v), 1.6e-2)


def run(rank, n, folder, backend, device):
    ranks.DEVICE, ranks.TOLERANCE_LSE = device, 2e-5
    ranks.TOLERANCES[torch.float32] = (2e-5, 2e-4)
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=n,
                            timeout=timedelta(seconds=120))
    if n > 1:
        through_the_host()
    start = time.perf_counter()
    cases(n)
    if rank == 0:
        print(f"{n} ranks, {dist.get_backend_config()}: passed in "
              f"{time.perf_counter() - start:.1f} s", flush=True)
    dist.destroy_process_group()


def world(n, backend, device):
    """Whether all ranks passed."""
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        for rank in range(n):
            process = os.fork()
            if not process:
                code = 1
                try:
                    run(rank, n, folder, backend, device)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            processes.append(process)
        return not any([os.waitpid(process, 0)[1] for process in processes])


def main(arguments):
    device = "cpu" if arguments == ["cpu"] else "cuda"
    first = world(1, "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl", device)
    rest = [world(n, "gloo", device) for n in SHARING]
    return 0 if first and all(rest) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
