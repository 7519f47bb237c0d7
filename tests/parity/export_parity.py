"""Plans exported for DeepSpeed, torchtitan and Megatron-LM, read by those trainers' own configuration code.

usage: export_parity.py BUILD/tests/export_tool    (specifies the build folder; the program is BUILD/optimus)

$OPTIMUS_TRAINERS is the folder that fetch_trainers.sh fills; a missing package is reported and skipped. $MEGATRON_LM may name a checkout of
Megatron-LM: then its argument parser and its validation read every launch script. Launch scripts run under bash with a torchrun that
prints its arguments. """
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve()
TRAINERS = pathlib.Path(os.environ.get("OPTIMUS_TRAINERS", "/nowhere"))


# Layers, key-value heads, ffn, positions.
MODELS = {"llama3-8b": (32, 8, 14336, 8192), "gpt3-1.3b": (24, 16, 8192, 2048), "qwen3-8b": (36, 8, 12288, 4096), "qwen2.5-7b": (28, 4, 18944, 4096),
          "mixtral-8x7b": (32, 8, 14336, 32768)}


def random_plan(source):
    """Returns a uniform plan as a plan file, and the numbers that define it."""
    model = source.choice([*MODELS, "llama3-8b"])
    layers, kv_heads, ffn, positions = MODELS[model]
    pp, chunks = source.choice([1, 1, 2, 4, 6]), 1
    tp, cp, dp = source.choice([1, 2, 4, 8]), source.choice([1, 1, 2]), source.choice([1, 2, 4])
    schedule = "1f1b"
    if pp > 1:
        schedule = source.choice(["1f1b", "interleaved", "gpipe", "zero-bubble"])
        chunks = 2 if schedule == "interleaved" else 1
    strategy = {"tp": tp, "cp": cp, "zero": source.randrange(4)}
    strategy["recompute"] = source.choice(["none", "selective", "full"])
    if strategy["recompute"] == "full":
        strategy["recompute_layers"] = source.choice([1, 2])
    if strategy["zero"] and source.random() < 0.3 and dp * cp > 1:
        strategy["shard_group"] = dp * cp // 2
    if strategy["zero"] and source.random() < 0.2:
        strategy["offload"] = True
    is_mixture = model.startswith("mixtral")
    if tp > 1 and (source.random() < 0.7 or is_mixture):
        strategy["sequence_parallel"] = True
    if is_mixture:
        strategy["ep"] = source.choice([parts for parts in (1, 2, 4, 8) if tp * cp * dp % parts == 0])
    microbatch, count = source.choice([1, 2]), pp * source.choice([1, 2, 3])
    width, parts = tp * cp * dp, pp * chunks
    bounds = [0] + [1 + (layers * i + parts - 1) // parts for i in range(1, parts)] + [layers + 2]
    stages = [{"devices": f"{s * width}..{(s + 1) * width - 1}" if width > 1 else str(s), "chunks": [
        [{"blocks": f"{bounds[c * pp + s]}..{bounds[c * pp + s + 1] - 1}", **strategy}] for c in range(chunks)]} for s in range(pp)]
    if chunks == 1:
        stages = [{"devices": s["devices"], "layers": s["chunks"][0]} for s in stages]
    plan = {"format": "optimus-plan", "version": 1, "model": model, "blocks": layers + 2, "batch": dp * microbatch * count,
            "sequence_length": positions, "schedule": schedule, "precision": source.choice(["bf16", "bf16", "fp32", "fp16", "fp8"]), "pipelines": [
                {"microbatches": [{"count": count, "sequences": dp * microbatch}], "stages": stages}]}
    facts = dict(strategy, pp=pp, dp=dp, chunks=chunks, microbatch=microbatch, count=count, world=width * pp, batch=plan["batch"],
                 precision=plan["precision"], schedule=schedule, model=model, layers=layers, kv_heads=kv_heads, ffn=ffn, positions=positions)
    return plan, facts


def launch_args(folder, environment=None):
    """Returns the arguments that launch.sh passes to torchrun."""
    with tempfile.TemporaryDirectory() as tools:
        fake = pathlib.Path(tools) / "torchrun"
        fake.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        fake.chmod(0o755)
        answer = subprocess.run([folder / "launch.sh"], capture_output=True, text=True, cwd=folder,
                                env={**os.environ, **(environment or {}), "PATH": f"{tools}:{os.environ['PATH']}"})
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.split("\n")[:-1]


def flags_of(words):
    """Returns "--flag value…" as a dictionary of lists."""
    flags, last = {}, None
    for word in words:
        if word.startswith("--"):
            last = flags.setdefault(word, [])
        elif last is not None:
            last.append(word)
    return flags


# ---- checks by each trainer's own code; each runs in its own process, with that trainer on its path


def without_init(package, place):
    """Imports modules of a package whose own __init__ imports kernels that need a GPU's compiler."""
    import types
    module = sys.modules[package] = types.ModuleType(package)
    module.__path__ = [str(place / package)]


def check_deepspeed(cases):
    import deepspeed.runtime.config as config

    class World:
        def __init__(self, size):
            self.size = size

        def get_rank(self):
            return 0

        def get_world_size(self, group=None):
            return self.size

    class Parts:
        def __init__(self, size):
            self.size = size

        def get_data_parallel_world_size(self):
            return self.size

    for folder, facts in cases:
        config.dist = World(facts["world"])
        got = config.DeepSpeedConfig(str(folder / "ds_config.json"), mpu=Parts(facts["dp"]))
        assert got.train_batch_size == facts["batch"] and got.train_micro_batch_size_per_gpu == facts["microbatch"], folder
        assert got.gradient_accumulation_steps == facts["count"]
        assert got.zero_optimization_stage == min(facts["zero"], 1 if facts["pp"] > 1 else 2 if facts["tp"] > 1 else 3)
        assert (got.tensor_parallel_config.autotp_size or 1) == facts["tp"]
        assert got.bfloat16_config.enabled == (facts["precision"] == "bf16") and got.float16_config.enabled == (facts["precision"] == "fp16")
        if facts["pp"] > 1:
            assert got.pipeline["stages"] == facts["pp"]
        offload = got.zero_config.offload_optimizer
        assert (offload is not None and "cpu" in str(offload.device)) == facts.get("offload", False)
        if got.zero_optimization_stage == 3 and "shard_group" in facts:
            assert got.zero_config.zero_hpz_partition_size == facts["shard_group"]


def same_degrees(got, facts, dims):
    assert got.tensor_parallel_degree == facts["tp"] and got.context_parallel_degree == facts["cp"] and got.pipeline_parallel_degree == facts["pp"]
    assert got.data_parallel_replicate_degree * got.data_parallel_shard_degree == facts["dp"]
    dims(dp_replicate=got.data_parallel_replicate_degree, dp_shard=got.data_parallel_shard_degree, cp=got.context_parallel_degree,
         tp=got.tensor_parallel_degree, pp=got.pipeline_parallel_degree, ep=1, world_size=facts["world"])
    if facts["pp"] > 1:
        from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
        many = issubclass(get_schedule_class(got.pipeline_parallel_schedule), PipelineScheduleMulti)
        parts = got.module_fqns_per_model_part
        assert len(parts) == facts["pp"] * (2 if many else 1), parts
        names = [name for part in parts for name in part]
        assert names[0] == "tok_embeddings" and names[1:-2] == [f"layers.{i}" for i in range(facts["layers"])] and names[-2] == "norm"


def check_titan_training(training, parallelism, facts):
    local = facts["microbatch"] * (facts["count"] if facts["pp"] > 1 else 1)
    assert training.local_batch_size == local and training.global_batch_size == facts["batch"] and training.seq_len == facts["positions"]
    assert training.global_batch_size % (local * facts["dp"]) == 0
    if facts["pp"] > 1:
        assert parallelism.pipeline_parallel_microbatch_size == facts["microbatch"]
    assert training.mixed_precision_param == ("float32" if facts["precision"] == "fp32" else "bfloat16")


def check_torchtitan_02(cases):
    import dataclasses
    import functools
    import tomllib
    without_init("torchtitan", TRAINERS / "torchtitan-0.2")

    from torchtitan.config.job_config import JobConfig
    from torchtitan.config.manager import ConfigManager
    try:
        from torchtitan.distributed.parallel_dims import ParallelDims
        dims = functools.partial(ParallelDims, etp=1)
    except ImportError as error:
        print(f"    its ParallelDims cannot be imported here ({error}); degrees are not checked")
        dims = lambda **ignored: None
    for folder, facts in cases:
        path = folder / "torchtitan.toml"
        got = ConfigManager().parse_args(["--job.config_file", str(path)])
        same_degrees(got.parallelism, facts, dims)
        check_titan_training(got.training, got.parallelism, facts)
        assert got.model.flavor == "8B" and got.model.name == facts["model"].split("-")[0] and got.activation_checkpoint.mode == facts["recompute"]
        # Unknown keys would be ignored, so they are looked up.
        for section, keys in tomllib.loads(path.read_text()).items():
            known = {field.name for field in dataclasses.fields(getattr(JobConfig(), section))}
            assert set(keys) <= known, (section, set(keys) - known)


def check_torchtitan_03(cases):
    """The whole package imports data sets and more; its configuration classes need only PyTorch. They reject unknown names (slots)."""
    import types
    without_init("torchtitan", TRAINERS / "torchtitan-0.3")

    from torchtitan.config.configs import DebugConfig, ParallelismConfig, TrainingConfig
    try:
        from torchtitan.distributed.parallel_dims import ParallelDims as dims
    except ImportError as error:
        print(f"    its ParallelDims cannot be imported here ({error}); degrees are not checked")
        dims = lambda **ignored: None

    def base():
        return types.SimpleNamespace(training=TrainingConfig(), parallelism=ParallelismConfig(), debug=DebugConfig(), model_spec=None,
                                     lr_scheduler=types.SimpleNamespace(), dataloader=types.SimpleNamespace())

    recompute = {"none": None, "selective": "SelectiveAC", "full": "FullAC"}
    stand_ins = {
        "torchtitan.components.optimizer": {"default_adamw": lambda **words: words},
        "torchtitan.components.quantization": {"Float8LinearConverter": types.SimpleNamespace(Config=lambda **words: words)},
        "torchtitan.distributed.activation_checkpoint": {
            name: types.SimpleNamespace(Config=lambda name=name: name) for name in ("FullAC", "SelectiveAC")},
        "torchtitan.models.llama3": {"model_registry": lambda flavor, **words: flavor},
        "torchtitan.models.llama3.config_registry": {"llama3_8b": base},
        "torchtitan.models.qwen3": {"model_registry": lambda flavor, **words: flavor},
        "torchtitan.models.qwen3.config_registry": {"qwen3_14b": base},
    }
    for name, members in stand_ins.items():
        module = sys.modules[name] = types.ModuleType(name)
        module.__dict__.update(members)
    for folder, facts in cases:
        scope = {}
        exec(compile((folder / "optimus_torchtitan.py").read_text(), "optimus_torchtitan.py", "exec"), scope)
        got = scope["optimus_plan"]()
        same_degrees(got.parallelism, facts, dims)
        check_titan_training(got.training, got.parallelism, facts)
        assert got.model_spec == "8B" and got.activation_checkpoint == recompute[facts["recompute"]]
        # The checks of the class itself.
        type(got.training)(**{name: getattr(got.training, name) for name in got.training.__slots__})


# Flags that Megatron-LM's command line declares by hand, or from configurations that are not part of megatron-core.
BY_HAND = """seq-length max-position-embeddings vocab-size position-embedding-type rotary-base rotary-percent swiglu
group-query-attention untie-embeddings-and-output-weights use-rope-scaling rope-scaling-factor pipeline-model-parallel-layout
num-virtual-stages-per-pipeline-rank use-distributed-optimizer use-megatron-fsdp data-parallel-sharding-strategy
num-distributed-optimizer-instances no-gradient-accumulation-fusion overlap-grad-reduce overlap-param-gather ckpt-format cp-comm-type
optimizer-cpu-offload use-precision-aware-optimizer grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 micro-batch-size
global-batch-size train-iters lr min-lr lr-decay-style lr-warmup-iters weight-decay adam-beta1 adam-beta2 clip-grad seed log-interval
eval-interval eval-iters save save-interval mock-data tokenizer-type""".split()
RENAMED = {"norm-epsilon": "layernorm_epsilon", "num-experts": "num_moe_experts", "disable-bias-linear": "add_bias_linear", "fp8-format": "fp8",
           "microbatch-group-size-per-virtual-pipeline-stage": "microbatch_group_size_per_vp_stage"}


def check_megatron(cases):
    import dataclasses

    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
    from megatron.core.transformer.transformer_config import TransformerConfig
    fields = {field.name for field in dataclasses.fields(TransformerConfig)}
    by_hand = set()
    for folder, facts in cases:
        words = launch_args(folder)
        flags = flags_of(words[words.index("pretrain_gpt.py") + 1:])
        for flag in flags:
            name = flag[2:]
            if RENAMED.get(name, name.replace("-", "_")) in fields:
                continue
            assert name in BY_HAND, f"{flag} is neither a field of TransformerConfig nor listed in BY_HAND"
            by_hand.add(flag)
        if "--pipeline-model-parallel-layout" in flags:
            layout = PipelineParallelLayerLayout.from_str(flags["--pipeline-model-parallel-layout"][0], facts["pp"])
            layout.validate_layer_layout(facts["layers"], None)
        one = lambda flag, kind=int, otherwise=None: kind(flags[flag][0]) if flag in flags else otherwise
        # Megatron-LM's own validation: recompute, heads, sequence parallelism, stages.
        TransformerConfig(
            num_layers=one("--num-layers"), hidden_size=one("--hidden-size"), ffn_hidden_size=one("--ffn-hidden-size"),
            num_attention_heads=one("--num-attention-heads"), num_query_groups=one("--num-query-groups"), kv_channels=one("--kv-channels"),
            tensor_model_parallel_size=one("--tensor-model-parallel-size"), pipeline_model_parallel_size=one("--pipeline-model-parallel-size"),
            context_parallel_size=one("--context-parallel-size"), sequence_parallel="--sequence-parallel" in flags,
            num_moe_experts=one("--num-experts"), expert_model_parallel_size=one("--expert-model-parallel-size", int, 1),
            expert_tensor_parallel_size=one("--expert-tensor-parallel-size"), moe_router_topk=one("--moe-router-topk", int, 2),
            moe_ffn_hidden_size=one("--moe-ffn-hidden-size"), moe_grouped_gemm="--moe-grouped-gemm" in flags,
            recompute_granularity=one("--recompute-granularity", str), recompute_method=one("--recompute-method", str),
            recompute_num_layers=one("--recompute-num-layers"), recompute_modules=flags.get("--recompute-modules"),
            bf16="--bf16" in flags, fp16="--fp16" in flags, pipeline_dtype=__import__("torch").float32,
            virtual_pipeline_model_parallel_size=one("--num-virtual-stages-per-pipeline-rank"),
            pipeline_model_parallel_layout=one("--pipeline-model-parallel-layout", str))
        assert flags["--micro-batch-size"] == [str(facts["microbatch"])] and flags["--global-batch-size"] == [str(facts["batch"])]
    print(f"    {len(by_hand)} flags are declared by Megatron-LM's command line, which is not part of megatron-core: set MEGATRON_LM to check them")


def check_megatron_lm(cases):
    import torch
    from unittest.mock import MagicMock
    for name in ("triton", "triton.language", "triton.runtime", "triton.language.extra"):
        sys.modules.setdefault(name, MagicMock(__version__="3.0.0"))  # kernels are declared with it, but none runs
    import typing
    typing.override = getattr(typing, "override", lambda function: function)  # from Python 3.12
    torch.compile = lambda function=None, **words: function if function else lambda inner: inner
    torch.cuda.get_device_properties = lambda *ignored: type("Device", (), {"major": 9, "minor": 0})
    torch.cuda.get_device_capability = lambda *ignored: (9, 0)
    from megatron.training.arguments import parse_args, validate_args
    for folder, facts in cases:
        os.environ.update(RANK="0", WORLD_SIZE=str(facts["world"]), LOCAL_RANK="0")
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        if "export CUDA_DEVICE_MAX_CONNECTIONS=1" in (folder / "launch.sh").read_text():
            os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
        words = launch_args(folder)
        sys.argv = words[words.index("pretrain_gpt.py"):]
        args = validate_args(parse_args())
        assert args.data_parallel_size == facts["dp"] and args.context_parallel_size == facts["cp"]
        assert args.virtual_pipeline_model_parallel_size == (facts["chunks"] if facts["chunks"] > 1 else None)
        assert args.num_layers == facts["layers"] and args.ffn_hidden_size == facts["ffn"] and args.seq_length == facts["positions"]
        assert not args.group_query_attention or args.num_query_groups == facts["kv_heads"]


CHECKS = [  # label, exported trainer, package folder
    ("deepspeed", "deepspeed", "deepspeed", check_deepspeed),
    ("torchtitan 0.2", "torchtitan", "torchtitan-0.2", check_torchtitan_02),
    ("torchtitan 0.3", "torchtitan", "torchtitan-0.3", check_torchtitan_03),
    ("megatron-core", "megatron", "megatron", check_megatron),
    ("Megatron-LM", "megatron", None, check_megatron_lm),
]


def run_check(name, work):
    check = next(row for row in CHECKS if row[0] == name)
    cases = [(work / row["folder"], row["facts"]) for row in json.loads((work / "cases.json").read_text()) if row["trainer"] == check[1]]
    check[3](cases)


def export_cases(optimus, work):
    seed = int(os.environ.get("OPTIMUS_SEED") or random.randrange(10**9))
    source = random.Random(seed)
    cases, refused = [], 0
    for number in range(200 if os.environ.get("OPTIMUS_LONG") else 40):
        plan, facts = random_plan(source)
        (work / f"{number}.json").write_text(json.dumps(plan))
        for trainer in ("megatron", "deepspeed", "torchtitan"):
            folder = f"{number}-{trainer}"
            answer = subprocess.run([optimus, "explain", work / f"{number}.json", "--export", trainer, "--out", work / folder, "--json"],
                                    capture_output=True, text=True)
            if answer.returncode == 0:
                cases.append({"trainer": trainer, "folder": folder, "facts": facts})
            else:
                assert answer.returncode == 1 and answer.stderr.count("\n") == 1, (plan, answer.stderr)
                refused += 1
    (work / "cases.json").write_text(json.dumps(cases))
    print(f"seed {seed}: {len(cases)} exports, {refused} refused")
    counts = {trainer: sum(case["trainer"] == trainer for case in cases) for trainer in ("megatron", "deepspeed", "torchtitan")}
    assert min(counts.values()) >= 3, counts
    return counts


def main():
    optimus = pathlib.Path(sys.argv[1]).resolve().parent.parent / "optimus"
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        counts = export_cases(optimus, work)
        for what, trainer, folder, _ in CHECKS:
            place = pathlib.Path(os.environ.get("MEGATRON_LM", "/nowhere")) if folder is None else TRAINERS / folder
            if not place.is_dir():
                print(f"  {what}: skipped, " + ("MEGATRON_LM is not set to a checkout" if folder is None else f"the package is not in {TRAINERS}"))
                continue
            answer = subprocess.run([sys.executable, "-W", "ignore", HERE, "--check", what, work], capture_output=True, text=True,
                                    env={**os.environ, "PYTHONPATH": str(place)})
            print(f"  {what}: " + ("failed" if answer.returncode else f"{counts[trainer]} exports accepted"))
            print("".join(line + "\n" for line in answer.stdout.splitlines() if line.startswith("    ")), end="")
            if answer.returncode:
                print(answer.stdout[-1500:] + answer.stderr[-2500:])
                failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        run_check(sys.argv[2], pathlib.Path(sys.argv[3]))
    else:
        main()
