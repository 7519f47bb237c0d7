"""One worker of bench/dynamic's peer: a GPT-2 by PyTorch's FSDP2 (fully_shard) on processors, with gloo, started and started again by torchrun. It knows nothing of scenarios: dynamic_peer.py plays them.
It writes metrics.jsonl (a line a step) and starts.jsonl (a line for each time that workers were started) to its run folder, and goes on from the folder's last whole checkpoint.

What was chosen, by steps in the lab (4 devices of 0.3 core, nothing happens, medians of 23 steps, single runs without another lab beside) and by processor time of the first thread (4 workers on 2 whole cores, two rounds):
- one shard group for the whole model, which has 1.7 MB: 0.34 s a step with 1 Gbit, 0.43 s with 300 Mbit; with --groups blocks (one for each block and one for the rest) 0.40 s and 0.46 s.
With a group for each block:
- weights are gathered early: 0.40 s; each when it is needed: 0.41 s;
- weights are kept between forward and backward: 0.41 s (three runs), 84 and 88 ms of processor time; with --reshard 0.44 s, 91 and 92 ms;
- AdamW is fused; with --optimizer foreach 0.37, 0.42, 0.42 s, 87 and 89 ms: that one is quicker was not seen;
- gradients are clipped, as ours are: --clip 0 saves 2 to 5 ms of processor time;
- one thread; nothing is compiled (not tried: each start would pay for it anew).
The same model without FSDP takes 56 ms of processor time for forward and backward, with it 80."""
import time

BEGAN = time.time()  # of this process, but for the interpreter itself

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

linux.end_with_parent(os.getppid())  # an agent that is killed takes its worker along: torchrun itself does not see to that

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 (fully_shard imports it when it is first used: 0.9 s, which would be paid at the device's pace)
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as checkpoint  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.fsdp import FSDPModule, fully_shard  # noqa: E402
from torch.nn import functional  # noqa: E402

IMPORTED = time.time()
VOCABULARY = 257  # of byte tokens, as ours
PATIENCE = timedelta(seconds=60)  # of every collective: a worker that waits for longer ends with an error, and its agent starts anew


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
    """GPT-2; the word embedding is also the head."""

    def __init__(self, asked):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, asked.hidden), nn.Embedding(asked.seq, asked.hidden)
        self.blocks = nn.ModuleList(Block(asked.hidden, asked.heads) for _ in range(asked.layers))
        self.norm = nn.LayerNorm(asked.hidden)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):  # [batch, seq]
        x = self.words(tokens) + self.places.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.words.weight)


def make_model(asked):
    torch.manual_seed(1)  # the same on all, so that shards are those of one model
    model = Model(asked)
    for block in model.blocks if asked.groups == "blocks" else ():
        fully_shard(block, reshard_after_forward=asked.reshard)
    fully_shard(model, reshard_after_forward=asked.reshard)
    return model


def make_optimizer(model, asked):
    """As ours by default: matrices and embeddings decay, biases and norms do not."""
    parameters = list(model.parameters())
    groups = [{"params": [p for p in parameters if p.dim() == 2], "weight_decay": 0.1}, {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=asked.lr, betas=(0.9, 0.95), **{asked.optimizer: True})


def share(count, parts, part):
    """The part's of so many samples: a range; the first have one more where they do not come out even."""
    each, more = divmod(count, parts)
    begin = part * each + min(part, more)
    return begin, begin + each + (part < more)


def own_batch(text, step, asked):
    """This worker's tokens of a step, [batch, seq + 1]. Which they are depends on the step alone, however many workers there are."""
    dice = torch.Generator().manual_seed(step)
    begins = torch.randint(len(text) - asked.seq - 1, (asked.batch,), generator=dice)
    low, high = share(asked.batch, dist.get_world_size(), dist.get_rank())
    return torch.stack([text[begin:begin + asked.seq + 1] for begin in begins[low:high].tolist()])


def run_step(model, optimizer, tokens, asked):
    """The loss over the whole batch. Workers may have unequal parts of it, and FSDP takes the mean over workers: so sums are scaled, not means taken."""
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.unshard(async_op=True)  # all at once, while the first blocks compute: on processors FSDP2 by itself gathers each when it is needed, and waits
    logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum") / (asked.batch * asked.seq)
    (loss * dist.get_world_size()).backward()
    told = loss.detach().clone()
    telling = dist.all_reduce(told, async_op=True)  # while the optimizer works
    if asked.clip > 0:
        nn.utils.clip_grad_norm_(model.parameters(), asked.clip)
    optimizer.step()
    optimizer.zero_grad()
    telling.wait()
    return told.item()


class Checkpoints:
    """Folders checkpoints/STEP; one that is not yet whole has another name."""

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
        """The step it was of; 0: there is none. Also where there were more or fewer workers."""
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
    """What rank 0 writes for people and for the bench."""

    def __init__(self, folder, step):
        self.is_writer = dist.get_rank() == 0
        self.folder, self.metrics = folder, folder / "metrics.jsonl"
        self.is_first = True
        times = [None] * dist.get_world_size()
        dist.all_gather_object(times, (BEGAN, IMPORTED))
        if self.is_writer and self.metrics.exists():  # steps that were lost are done, and told, again
            kept = self.metrics.read_text().splitlines(keepends=True)[:step]
            fresh = self.metrics.with_suffix(".tmp")
            fresh.write_text("".join(kept))
            fresh.rename(self.metrics)
        self._tell_start({"kind": "start", "workers": len(times), "step": step, "began": min(began for began, _ in times), "imported": max(imported for _, imported in times),
                          "import_seconds": max(imported - began for began, imported in times)})

    def _tell_start(self, row):
        if self.is_writer:
            _append(self.folder / "starts.jsonl", row)

    def step(self, step, loss, seconds):
        if not self.is_writer:
            return
        _append(self.metrics, {"step": step, "loss": loss, "seconds": seconds})
        if self.is_first:
            self._tell_start({"kind": "first_step", "step": step, "at": time.time()})
        self.is_first = False


def _append(path, row):
    with open(path, "a") as out:
        out.write(json.dumps(row) + "\n")


def enter_device():
    """From here on this thread computes, at the pace of its device. Before, it was the host's business, as where devices are cards."""
    group = os.environ.get("LAB_DEVICE")
    if group:
        paces.move_thread(str(os.getpid()), pathlib.Path(group))


def train(asked):
    text = torch.frombuffer(bytearray(asked.data.read_bytes()), dtype=torch.uint8).long()
    model = make_model(asked)
    optimizer = make_optimizer(model, asked)
    checkpoints = Checkpoints(asked.folder, model, optimizer)
    done = checkpoints.load()
    records = Records(asked.folder, done)
    for step in range(done + 1, asked.steps + 1):
        began = time.monotonic()
        loss = run_step(model, optimizer, own_batch(text, step, asked), asked)
        # Before the step is told: a host that is lost just when this step is told is lost behind its checkpoint, the kindest moment for the peer.
        if asked.save_every > 0 and step % asked.save_every == 0:
            checkpoints.save(step)
        records.step(step, loss, time.monotonic() - began)


def read_words():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, usual in (("layers", 4), ("hidden", 64), ("heads", 4), ("seq", 32), ("batch", 32), ("steps", 100), ("save-every", 0), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--clip", type=float, default=1.0)  # as ours
    parser.add_argument("--precision", choices=("fp32", "fp64"), default="fp64")
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--reshard", action="store_true")
    parser.add_argument("--groups", choices=("one", "blocks"), default="one")
    parser.add_argument("--optimizer", choices=("fused", "foreach"), default="fused")
    return parser.parse_args()


def main():
    asked = read_words()
    torch.set_num_threads(asked.threads)
    torch.set_default_dtype({"fp32": torch.float32, "fp64": torch.float64}[asked.precision])
    dist.init_process_group("gloo", timeout=PATIENCE)
    enter_device()
    train(asked)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception:  # a peer is lost: at once back to the agent, without the seconds that Python takes to clear up at a device's pace
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
