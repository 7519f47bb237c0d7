#!/usr/bin/env python3
"""Step times that the simulator predicts for the engine on this machine, compared with measured ones: one device, a dozen training setups.

  bench/prediction_bench.py build/test/bench/bench_engine --device cpu [--hardware FILE] [--probe]

--probe measures the machine first and writes FILE; without it FILE must exist (optimus profile --hardware --out FILE). Nothing else may
run on the machine meanwhile. None of the training setups is one of those that the probe measures. """
import argparse
import json
import statistics
import subprocess
import sys

GPT = "model=gpt2 layers={} hidden={} heads={} vocab={}"
LLAMA = "model=llama3-8b layers={} hidden={} heads={} kv_heads={} ffn={} vocab={}"
CPU = {
    "GPT 6 x 256, 8 x 128 fp32": GPT.format(6, 256, 8, 257) + " batch=16 microbatch=8 seq=128 precision=fp32",
    "GPT 4 x 512, 8 x 256 fp32": GPT.format(4, 512, 8, 5000) + " batch=8 microbatch=8 seq=256 precision=fp32",
    "GPT 4 x 128, 4 x 64 fp32": GPT.format(4, 128, 4, 257) + " batch=8 microbatch=4 seq=64 precision=fp32",
    "GPT-2 124M, 2 x 256 fp32": "model=gpt2 batch=4 microbatch=2 seq=256 precision=fp32",
    "GPT 3 x 768, 1 x 1024 fp32, full": "model=gpt2 layers=3 vocab=10000 batch=2 microbatch=1 seq=1024 precision=fp32 recompute=full",
    "GPT 2 x 1024, 4 x 256 bf16": GPT.format(2, 1024, 16, 10000) + " batch=4 microbatch=4 seq=256 precision=bf16",
    "Llama 4 x 384, 4 x 256 fp32": LLAMA.format(4, 384, 6, 2, 1024, 8000) + " batch=8 microbatch=4 seq=256 precision=fp32",
    "Llama 8 x 512, 2 x 512 fp32, full": LLAMA.format(8, 512, 8, 4, 1536, 16000) + " batch=4 microbatch=2 seq=512 precision=fp32 recompute=full",
    "Llama 4 x 256, 8 x 256 bf16": LLAMA.format(4, 256, 8, 4, 1024, 1000) + " batch=8 microbatch=8 seq=256 precision=bf16",
    "BERT 4 x 384, 8 x 128 fp32, selective": "model=bert-base layers=4 hidden=384 heads=6 vocab=8000 batch=16 microbatch=8 seq=128 precision=fp32 recompute=selective",
    "Qwen 3 4 x 512, 2 x 1024 fp32": "model=qwen3-0.6b layers=4 hidden=512 heads=8 kv_heads=4 ffn=1536 vocab=10000 batch=2 microbatch=2 seq=1024 precision=fp32",
    "Mistral 2 x 1024, 1 x 2048 fp32": "model=mistral-7b layers=2 hidden=1024 heads=16 kv_heads=4 ffn=3072 vocab=8000 batch=1 microbatch=1 seq=2048 precision=fp32",
}
LLAMA_1B = LLAMA.format(16, 2048, 32, 8, 8192, 128256) + " head_dim=64 tied=1"
CUDA = {
    "GPT-2 124M, 64 x 1024": "model=gpt2 vocab=50304 batch=128 microbatch=64 seq=1024",
    "GPT-2 124M, 8 x 1024, full by 2": "model=gpt2 vocab=50304 batch=16 microbatch=8 seq=1024 recompute=full recompute_layers=2",
    "GPT-2 124M, 1 x 256": "model=gpt2 vocab=50304 batch=1 microbatch=1 seq=256",
    "GPT-2 355M, 16 x 1024, selective": "model=gpt2-medium vocab=50304 batch=32 microbatch=16 seq=1024 recompute=selective",
    "GPT-2 1.5B, 8 x 1024": "model=gpt2-xl vocab=50304 batch=16 microbatch=8 seq=1024",
    "Llama 1B, 8 x 2048": LLAMA_1B + " batch=16 microbatch=8 seq=2048",
    "Llama 1B, 2 x 8192, full": LLAMA_1B + " batch=4 microbatch=2 seq=8192 recompute=full",
    "Llama 3 8B, 6 layers, 2 x 4096": "model=llama3-8b layers=6 batch=4 microbatch=2 seq=4096",
    "Qwen 2.5 0.5B, 8 x 1024": "model=qwen2.5-0.5b batch=16 microbatch=8 seq=1024",
    "BERT large, 32 x 512": "model=bert-large batch=64 microbatch=32 seq=512",
    "Mistral 7B, 4 layers, 1 x 8192": "model=mistral-7b layers=4 batch=2 microbatch=1 seq=8192",
}


def run(tool, args):
    completed = subprocess.run([tool, *args], capture_output=True, text=True, timeout=600)
    if completed.returncode != 0:
        sys.exit(completed.stderr.strip())
    return completed.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", help="bench_engine")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--hardware", default="hardware.json")
    parser.add_argument("--probe", action="store_true")
    options = parser.parse_args()
    if options.probe:
        run(options.tool, [f"probe={options.hardware}", f"device={options.device}"])
    baseline = ["quick=1", f"device={options.device}", "warm=3", "steps=7", f"hardware={options.hardware}"]
    errors = []
    print(f"{'training':<40} {'measured':>10} {'predicted':>10} {'error':>8} {'memory':>8}")
    for name, args in (CPU if options.device == "cpu" else CUDA).items():
        precision = [] if "precision=" in args else ["precision=bf16"]
        results = json.loads(run(options.tool, args.split() + precision + baseline))
        errors.append(results["predicted_seconds"] / results["step_seconds"] - 1)
        # On a CPU, the memory of the process does not show the arena; tests/engine checks the allocator.
        memory = f"{results['predicted_bytes'] / results['peak_bytes'] - 1:+8.1%}" if options.device == "cuda" else "      --"
        print(f"{name:<40} {results['step_seconds']:>9.4f}s {results['predicted_seconds']:>9.4f}s {errors[-1]:>+8.1%} {memory}", flush=True)
    sizes = [abs(error) for error in errors]
    print(f"mean error {statistics.mean(sizes):.1%}, largest {max(sizes):.1%}, {len(sizes)} cases")


if __name__ == "__main__":
    main()
