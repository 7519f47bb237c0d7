"""One worker of the FSDP2 variant of bench/dynamic: a GPT-2 with PyTorch's FSDP2 (fully_shard) on CPUs, over gloo, started and restarted by
torchrun. It does not depend on scenarios: dynamic_peer.py runs them. It writes metrics.jsonl (a line per step) and starts.jsonl (a line for
each start of the workers) to its run folder, and resumes from the last complete checkpoint in the folder.

Its settings were chosen by step times in the lab (4 devices of 0.3 core, no events, medians of 23 steps, single runs) and by the CPU time
of the main thread (4 workers on 2 whole cores, two rounds):
- one shard group for the whole model, which has 1.7 MB: 0.34 s per step with 1 Gbit, 0.43 s with 300 Mbit; with --groups blocks (one per
  block and one for the rest) 0.40 s and 0.46 s.
With a group per block:
- weights are gathered early: 0.40 s; each when it is needed: 0.41 s;
- weights are kept between forward and backward: 0.41 s (three runs), 84 and 88 ms of CPU time; with --reshard 0.44 s, 91 and 92 ms;
- AdamW is fused; with --optimizer foreach 0.37, 0.42, 0.42 s, 87 and 89 ms: no significant difference;
- gradients are clipped, as in Optimus-Megatron: --clip 0 saves 2 to 5 ms of CPU time;
- one thread; nothing is compiled (not tried, because each restart would compile again).
The same model takes 56 ms of CPU time for forward and backward without FSDP, and 80 ms with it."""
import time

START_TIME = time.time()  # start of this process, except for the interpreter itself

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import shutil  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402
from datetime import timedelta  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "lab"))
import linux  # noqa: E402
import paces  # noqa: E402

linux.end_with_parent(os.getppid())  # the worker ends when its agent is killed, which torchrun does not ensure

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 (fully_shard imports it at first use, which would take 0.9 s at the device's speed)
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from torch.nn import functional  # noqa: E402

IMPORTED = time.time()
VOCABULARY = 257  # byte tokens, as in Optimus-Megatron
TIMEOUT = timedelta(seconds=60)  # of every collective: a worker that waits longer ends with an error, and its agent restarts it


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):  # [batch, seq, hidden]
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)  # each [batch, heads, seq, head_dim]
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    """GPT-2; the token embedding is also the head."""

    def __init__(self, options):
        super().__init__()
        self.token_embedding, self.positions = nn.Embedding(VOCABULARY, options.hidden), nn.Embedding(options.seq, options.hidden)
        self.blocks = nn.ModuleList(Block(options.hidden, options.heads) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.hidden)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):  # [batch, seq]
        x = self.token_embedding(tokens) + self.positions.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.token_embedding.weight)


def make_model(options):
    torch.manual_seed(1)  # the same on all workers, so that all shards belong to one model
    model = Model(options)
    for block in model.blocks if options.groups == "blocks" else ():
        fully_shard(block, reshard_after_forward=options.reshard)
    fully_shard(model, reshard_after_forward=options.reshard)
    return model


def make_optimizer(model, options):
    """As the defaults of Optimus-Megatron: weight decay for matrices and embeddings, none for biases and norms."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1}, {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), **{options.optimizer: True})


def share(count, parts, part):
    """Returns the range of samples of this part; the first parts have one more if the division has a remainder."""
    each, more = divmod(count, parts)
    begin = part * each + min(part, more)
    return begin, begin + each + (part < more)


def local_batch(text, step, options):
    """Returns this worker's tokens of a step, [batch, seq + 1]. The batch depends only on the step, not on the number of workers."""
    generator = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text) - options.seq - 1, (options.batch,), generator=generator)
    low, high = share(options.batch, dist.get_world_size(), dist.get_rank())
    return torch.stack([text[begin:begin + options.seq + 1] for begin in begins[low:high].tolist()])


def run_step(model, optimizer, tokens, options):
    """Returns the loss over the whole batch. Workers may have unequal parts of it, and FSDP averages over workers, so sums are scaled."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            # All at once, while the first blocks compute: on CPUs, FSDP2 by default gathers each one when it is needed, and waits.
            part.unshard(async_op=True)
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / (options.batch * options.seq)
    (loss * dist.get_world_size()).backward()
    reported_loss = loss.detach().clone()
    loss_reduction = dist.all_reduce(reported_loss, async_op=True)  # overlaps with the optimizer
    if options.clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    optimizer.step()
    optimizer.zero_grad()
    loss_reduction.wait()
    return reported_loss.item()


class Checkpoints:
    """Folders checkpoints/STEP; an incomplete checkpoint has another name."""

    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = folder / "checkpoints", model, optimizer

    def _state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def save(self, step):
        written = self.folder / f"{step}.tmp"
        checkpoint.save(self._state(), checkpoint_id=written)
        if dist.get_rank() == 0:
            whole = written.rename(self.folder / str(step))
            for old in self.folder.iterdir():
                if old != whole:
                    shutil.rmtree(old)

    def load(self):
        """Loads the newest checkpoint and returns its step; 0 if there is none. The number of workers may have changed."""
        steps = [int(one.name) for one in self.folder.glob("*") if one.name.isdigit()]
        agreed = torch.tensor(max(steps, default=0))
        dist.broadcast(agreed, 0)
        step = int(agreed)
        if step > 0:
            state = self._state()
            checkpoint.load(state, checkpoint_id=self.folder / str(step))
            set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return step


class Records:
    """The files that rank 0 writes for users and for the benchmark."""

    def __init__(self, folder, step):
        self.is_writer = dist.get_rank() == 0
        self.folder, self.metrics = folder, folder / "metrics.jsonl"
        self.is_first = True
        times = [None] * dist.get_world_size()
        dist.all_gather_object(times, (START_TIME, IMPORTED))
        if self.is_writer and self.metrics.exists():  # lost steps are repeated and recorded again
            rows = self.metrics.read_text().splitlines(keepends=True)[:step]
            fresh = self.metrics.with_suffix(".tmp")
            fresh.write_text("".join(rows))
            fresh.rename(self.metrics)
        self._record_start({"kind": "start", "workers": len(times), "step": step, "began": min(start_time for start_time, _ in times), "imported": max(imported for _, imported in times),
                          "import_seconds": max(imported - start_time for start_time, imported in times)})

    def _record_start(self, row):
        if self.is_writer:
            _append(self.folder / "starts.jsonl", row)

    def step(self, step, loss, seconds):
        if not self.is_writer:
            return
        _append(self.metrics, {"step": step, "loss": loss, "seconds": seconds})
        if self.is_first:
            self._record_start({"kind": "first_step", "step": step, "at": time.time()})
        self.is_first = False


def _append(path, row):
    with open(path, "a") as out:
        out.write(json.dumps(row) + "\n")


def enter_device():
    """Moves this thread, which computes from now on, to the control group of its device. Before, it belonged to the host, as on machines
    with GPUs."""
    group = os.environ.get("LAB_DEVICE")
    if group:
        paces.move_thread(str(os.getpid()), pathlib.Path(group))


def train(options):
    text = torch.frombuffer(bytearray(options.data.read_bytes()), dtype=torch.uint8).long()
    model = make_model(options)
    optimizer = make_optimizer(model, options)
    checkpoints = Checkpoints(options.folder, model, optimizer)
    completed = checkpoints.load()
    records = Records(options.folder, completed)
    for step in range(completed + 1, options.steps + 1):
        start_time = time.monotonic()
        loss = run_step(model, optimizer, local_batch(text, step, options), options)
        # Saved before the step is recorded: a host that is lost just after this step is lost after its checkpoint, which favours the peer.
        if options.save_every > 0 and step % options.save_every == 0:
            checkpoints.save(step)
        records.step(step, loss, time.monotonic() - start_time)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 4), ("hidden", 64), ("heads", 4), ("seq", 32), ("batch", 32), ("steps", 100), ("save-every", 0), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=1.0)  # as in Optimus-Megatron
    parser.add_argument("--precision", choices=("fp32", "fp64"), default="fp64")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--reshard", action="store_true")
    parser.add_argument("--groups", choices=("one", "blocks"), default="one")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.set_num_threads(options.threads)
    torch.set_default_dtype({"fp32": torch.float32, "fp64": torch.float64}[options.precision])
    dist.init_process_group("gloo", timeout=TIMEOUT)
    enter_device()
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception:  # a peer was lost: exit at once, because Python's cleanup would take seconds at the device's speed
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
