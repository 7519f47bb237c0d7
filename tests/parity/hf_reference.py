"""Results of transformers and torch.optim.AdamW for a model and a batch: the reference of engine_parity.py.

Uses eager attention. In double precision, transformers' own code still computes norms, softmax and rotary angles in single precision,
because it requests float32 explicitly; InDouble replaces every such request by float64, so that their code runs with a precision of
1e-15. """
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch.overrides import TorchFunctionMode

transformers.utils.logging.disable_progress_bar()


class InDouble(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        swap = lambda value: torch.float64 if value is torch.float32 else value
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        result = function(*map(swap, args), **{key: swap(value) for key, value in (kwargs or {}).items()})
        assert not (isinstance(result, torch.Tensor) and result.dtype == torch.float32), f"{function} gave float32"
        return result


def mean_loss(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def optimizer_of(model, request):
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": request["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=request["lr"], betas=(request["beta1"], request["beta2"]), eps=request["epsilon"], foreach=False)


def train(model, inputs, targets, request):
    """The contents of engine_tool's `out`, as numpy arrays."""
    inputs, targets = torch.from_numpy(inputs), torch.from_numpy(targets)
    named = dict(model.named_parameters())  # a tied parameter appears once
    optimizer = optimizer_of(model, request)
    out, losses, norms = {}, [], []
    for step in range(request["steps"]):
        optimizer.zero_grad()
        logits = model(input_ids=inputs).logits
        loss = mean_loss(logits, targets)
        loss.backward()
        if step == 0:
            out["logits"] = logits.detach().numpy().copy()
            # A parameter on which the loss does not depend would be an error in the case; none is known.
            for name, parameter in named.items():
                out[f"grad/{name}"] = parameter.grad.numpy().copy()
        losses.append(loss.detach())
        norms.append(torch.nn.utils.clip_grad_norm_(named.values(), request["clip"], foreach=False))
        optimizer.step()
    out["losses"], out["grad_norms"] = torch.stack(losses).numpy(), torch.stack(norms).numpy()
    for name, parameter in named.items():
        out[f"param/{name}"] = parameter.detach().numpy().copy()
    return out


def reference(build, inputs, targets, request):
    """`build` creates the model in the current default precision; it is called once per call of this function."""
    if request["precision"] == "fp64":
        torch.set_default_dtype(torch.float64)
        try:
            with InDouble():
                return train(build().double(), inputs, targets, request)
        finally:
            torch.set_default_dtype(torch.float32)
    return train(build().float(), inputs, targets, request)
