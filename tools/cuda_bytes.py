"""Counts the bytes that one pass on a CUDA device moves, kernel by kernel; see docs/cuda.md.

Nothing is measured: every array counts once where a kernel reads it and once where it writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 64  # positions of an attention chunk
SPAN = 8  # chunks of a span
TILE = 8  # queries of a kv head that one thread block of attention has


@dataclass(frozen=True)
class Shape:
    """A dense model: sizes, bytes per weight, bytes per element of the cache."""

    layers: int
    width: int  # E
    heads: int  # H
    kv_heads: int  # Hkv
    head_dim: int  # D
    hidden: int  # F
    vocab: int  # V
    weight_bytes: float
    cache_bytes: float = 2.0


LLAMA_8B_Q4_K = Shape(32, 4096, 32, 8, 128, 14336, 128256, weight_bytes=144 / 256)


def activations(rows: int, cols: int) -> float:
    """Returns the bytes of int8 activations: whole octets, 16 bytes of scales per 32 values."""
    return -(-rows // 8) * 8 * cols * 1.5


def units(shape: Shape, rows: int, depth: int) -> int:
    """Returns how many partial results attention leaves per query: 1 is the result itself."""
    tiles = -(-rows * shape.heads // shape.kv_heads // TILE)
    return -(-(depth + rows) // (CHUNK if tiles == 1 else CHUNK * SPAN))


def layer_bytes(shape: Shape, rows: int, depth: int) -> dict[str, float]:
    """Returns kernel -> bytes of one layer, for `rows` tokens behind `depth` cached ones."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    e, f, floats = shape.width, shape.hidden, 4 * rows
    parts = units(shape, rows, depth)
    partials = floats * shape.heads * parts * (2 + shape.head_dim) if parts > 1 else 0
    unread = 0 if parts > 1 else floats * q  # what `quantize` has to read
    norm = 2 * floats * e + 4 * e + activations(rows, e)
    return {
        "rms_norm (2)": 2 * norm,
        "multiply: q, k, v": (q + 2 * kv) * (e * shape.weight_bytes + floats)
        + activations(rows, e),
        "rotate_and_store": floats * (2 * q + 2 * kv + shape.head_dim)
        + rows * 2 * kv * shape.cache_bytes,
        "attend: cache": (depth + rows) * 2 * kv * shape.cache_bytes + floats * q,
        "attend, merge_chunks: partials": 2 * partials + floats * q,
        "quantize": unread + activations(rows, q),
        "multiply: attention output": e * (q * shape.weight_bytes + floats) + activations(rows, q),
        "multiply: gate, up": 2 * f * (e * shape.weight_bytes + floats) + activations(rows, e),
        "activate_quantize": 2 * floats * f + activations(rows, f),
        "multiply: down": e * (f * shape.weight_bytes + floats) + activations(rows, f),
        "add (2)": 2 * 3 * floats * e,
    }


def pass_bytes(shape: Shape, rows: int, depth: int) -> dict[str, float]:
    """Returns kernel -> bytes of a whole pass that scores all its rows."""
    e, floats = shape.width, 4 * rows
    total = {name: shape.layers * n for name, n in layer_bytes(shape, rows, depth).items()}
    total["rms_norm of the output"] = 2 * floats * e + 4 * e + activations(rows, e)
    total["multiply: logits"] = shape.vocab * (e * shape.weight_bytes + floats) + activations(
        rows, e
    )
    return total


def needed_bytes(shape: Shape, rows: int, depth: int) -> float:
    """Returns weights + cache + logits: what no way of computing the pass can do without."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.width * (2 * q + 2 * kv + 3 * shape.hidden)
    weights = (shape.layers * layer + shape.vocab * shape.width) * shape.weight_bytes
    cache = shape.layers * (depth + rows) * 2 * kv * shape.cache_bytes
    return weights + cache + 4 * rows * shape.vocab


CASES = [(1, 64), (1, 4096), (8, 64), (8, 4096)]


def table(shape: Shape) -> str:
    """Returns the table of docs/cuda.md: megabytes by kernel, width and depth."""
    columns = [pass_bytes(shape, rows, depth) for rows, depth in CASES]
    heads = [f"{rows} x {depth}" for rows, depth in CASES]
    lines = ["| MB | " + " | ".join(heads) + " |", "|---|" + "---|" * len(CASES)]
    lines += [
        f"| {name} | " + " | ".join(f"{c[name] / 1e6:.1f}" for c in columns) + " |"
        for name in columns[0]
    ]
    sums = [sum(c.values()) for c in columns]
    needed = [needed_bytes(shape, rows, depth) for rows, depth in CASES]
    lines.append("| sum | " + " | ".join(f"{s / 1e6:.1f}" for s in sums) + " |")
    lines.append(
        "| weights + cache + logits | " + " | ".join(f"{n / 1e6:.1f}" for n in needed) + " |"
    )
    ratios = [s / n for s, n in zip(sums, needed, strict=True)]
    lines.append("| ratio | " + " | ".join(f"{r:.3f}" for r in ratios) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(LLAMA_8B_Q4_K))
