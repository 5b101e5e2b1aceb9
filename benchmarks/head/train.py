"""Train the draft head on what `generate.py` recorded, and write the checkpoint that the package ships.

    python -m benchmarks.head.train --data data/train --eval data/eval --out head.npz --minutes 60

The head starts from the target's last layer. The run is bounded by time: the learning rate warms up and then follows a
cosine down to the end. Shards that appear while it runs join at the next epoch. Matrix products use bfloat16 inputs
with float32 sums where the CPU has them.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.head.acceptance import measure
from benchmarks.head.generate import CAPTURE_LAYERS
from benchmarks.head.network import DraftHead, HeadShape
from benchmarks.head.objective import Example, Vocabulary, choose_vocabulary, loss_of, teach
from benchmarks.head.optimizer import MatrixOptimizer
from benchmarks.head.recording import Recording, load_shard, shards
from lightspec_lightllm.drafters.checkpoint import HeadGeometry
from lightspec_lightllm.engine.checkpoint import Checkpoint, ModelConfig, open_checkpoint
from lightspec_lightllm.engine.fetch import default_model_path

WARMUP_STEPS = 60


class Dataset:
    """Examples out of a folder that may still be growing."""

    def __init__(self, folder: Path, embedding: torch.Tensor, output_norm: torch.Tensor, eps: float, size: int) -> None:
        self._folder = folder
        self._output_norm = output_norm
        self._eps = eps
        self._seen: set[Path] = set()
        self.examples: list[Example] = []
        first = self._new()
        self.vocabulary = choose_vocabulary(first, embedding, size)
        self._add(first)

    def grow(self) -> None:
        """Take in shards that were finished since the last call."""
        self._add(self._new())

    def batches(self, rng: random.Random, anchors: int) -> Iterator[list[Example]]:
        """All examples once, in batches of about ``anchors`` anchors and of similar lengths."""
        order = rng.sample(self.examples, len(self.examples))
        found: list[list[Example]] = []
        for begin in range(0, len(order), 256):
            batch: list[Example] = []
            for example in sorted(order[begin : begin + 256], key=lambda each: each.recording.response_length):
                if batch and example.recording.response_length * (len(batch) + 1) > anchors:
                    found.append(batch)
                    batch = []
                batch.append(example)
            found.append(batch)
        rng.shuffle(found)
        return iter(found)

    def _new(self) -> list[Recording]:
        paths = [path for path in shards(self._folder) if path not in self._seen]
        self._seen.update(paths)
        return [each for path in paths for each in load_shard(path) if each.response_length >= 4]

    def _add(self, recordings: Sequence[Recording]) -> None:
        self.examples += [
            Example(each, teach(each, self.vocabulary, self._output_norm, self._eps)) for each in recordings
        ]


def start_from_target(head: DraftHead, checkpoint: Checkpoint) -> None:
    """Give the head the target's last layer, and the stream that leaves it as its hidden input."""
    config = checkpoint.config
    size, prefix = config.hidden_size, f"layers.{config.num_layers - 1}."

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(checkpoint.tensor(name))

    rows = tensor(prefix + "qkv")
    turned = (config.num_heads + config.num_kv_heads) * config.head_dim
    # The checkpoint keeps rotary pairs as neighbours; the head keeps them half a head apart.
    pairs = rows[:turned].view(-1, config.head_dim // 2, 2, size).transpose(1, 2).reshape(turned, size)
    with torch.no_grad():
        # The final stream enters at a fifth of its usual scale, and so do the outputs of both sublayers: the function
        # is the same, as every reader normalises, and small weights move faster.
        head.fuse.weight.mul_(0.5)
        head.fuse.weight[:, -size:] += 4 * torch.eye(size)
        head.qkv.weight[:, size:] += torch.cat([pairs, rows[turned:]])
        head.hidden_norm.weight.copy_(tensor(prefix + "attention_norm"))
        head.out.weight.copy_(0.2 * tensor(prefix + "attention_output"))
        head.ffn_norm.weight.copy_(tensor(prefix + "ffn_norm"))
        head.gate_up.weight.copy_(tensor(prefix + "gate_up"))
        head.down.weight.copy_(0.2 * tensor(prefix + "down"))
        head.output_norm.weight.copy_(tensor("output_norm"))


def geometry_for(config: ModelConfig) -> HeadGeometry:
    """A head with the target's own attention sizes."""
    return HeadGeometry(
        target=config.name,
        capture_layers=CAPTURE_LAYERS,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        rope_theta=config.rope_base,
        norm_eps=config.norm_epsilon,
    )


def rate_at(peak: float, step: int, progress: float) -> float:
    """Learning rate: linear warm-up by steps, cosine to a fiftieth by progress 0..1."""
    return peak * min(1.0, (step + 1) / WARMUP_STEPS) * (0.02 + 0.98 * (0.5 + 0.5 * math.cos(math.pi * progress)))


def report(head: DraftHead, folder: Path, vocabulary: Vocabulary, embedding: torch.Tensor) -> None:
    """Print the acceptance on the evaluation recordings, by kind."""
    recordings = [each for path in shards(folder) for each in load_shard(path)]
    for kind in sorted({each.kind for each in recordings}):
        found = measure(head, [each for each in recordings if each.kind == kind], vocabulary.ids, embedding)
        chances = " ".join(f"{chance:.3f}" for chance in found.conditional)
        print(f"  {kind}: conditional acceptance {chances}; accepted per round {found.mean_accepted:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of training shards")
    parser.add_argument("--eval", type=Path, help="folder of evaluation shards")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint to write, .npz")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=3e-3, help="peak learning rate")
    parser.add_argument("--anchors", type=int, default=1200, help="anchors per step")
    parser.add_argument("--steps", type=int, default=5, help="unrolled draft steps")
    parser.add_argument("--vocabulary", type=int, default=12288, help="draft vocabulary")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=None, help="the target's file; by default it is downloaded once")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"  # type: ignore[attr-defined] # newer than torch's stubs
    rng = random.Random(options.seed)

    checkpoint = open_checkpoint(options.model or default_model_path())
    config = checkpoint.config
    embedding = torch.from_numpy(checkpoint.tensor("embedding"))
    output_norm = torch.from_numpy(checkpoint.tensor("output_norm"))
    head = DraftHead(geometry_for(config), HeadShape(config.hidden_size, config.ffn_size, config.head_dim))
    start_from_target(head, checkpoint)
    data = Dataset(options.data, embedding, output_norm, config.norm_epsilon, options.vocabulary)
    optimizer = MatrixOptimizer(head.parameters())

    begin, step, epoch, anchors, shown = time.monotonic(), 0, 0, 0, 0.0
    batches: Iterator[list[Example]] = iter(())
    while (progress := (time.monotonic() - begin) / (60 * options.minutes)) < 1.0:
        batch = next(batches, None)
        if batch is None:
            data.grow()
            epoch += 1
            batches = data.batches(rng, options.anchors)
            continue
        loss, count = loss_of(head, batch, data.vocabulary, embedding, steps=options.steps)
        loss.backward()  # type: ignore[no-untyped-call] # torch's stubs leave it untyped
        optimizer.step(rate_at(options.rate, step, progress))
        step, anchors = step + 1, anchors + count
        if progress - shown > 0.125:
            shown = progress
            print(f"step {step}, epoch {epoch}, {anchors} anchors, loss {float(loss.detach()):.3f}", flush=True)
            head.export(data.vocabulary.ids).save(options.out)
            if options.eval:
                report(head, options.eval, data.vocabulary, embedding)
    head.export(data.vocabulary.ids).save(options.out)
    if options.eval:
        report(head, options.eval, data.vocabulary, embedding)


if __name__ == "__main__":
    main()
