"""Faults for the CUDA kernels that their tests must find; `cuda_mutants.py` seeds them one by one.

A fault replaces a piece of text that stands exactly once in its file. A test checks that, so a
change of a kernel that carries away a fault's text asks for the fault to be moved along.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CUDA", "MUTANTS", "Mutant", "mutated"]

CUDA = Path(__file__).resolve().parent.parent / "csrc" / "backend" / "cuda"
_DENSE, _CACHE = "tests/cuda_emu/test_dense_ops.py", "tests/cuda_emu/test_cache_ops.py"
_SAMPLING, _VERIFY = "tests/cuda_emu/test_sampling_ops.py", "tests/ops/test_verify.py"
_PRODUCTS = (_DENSE, "-k", "test_products_at_every_width")
_MLP = (_DENSE, "-k", "test_gated_mlp or test_qkv")
_EXPERTS = ("tests/cuda_emu/test_expert_ops.py",)
_NORM = (_DENSE, "-k", "test_rms_norm")


@dataclass(frozen=True)
class Mutant:
    """One seeded fault.

    Attributes:
        name: What is wrong then.
        file: Relative to csrc/backend/cuda.
        find: The text to replace.
        replace: What stands there instead.
        tests: Arguments of pytest that must fail.
        under: "asan" or "tsan" if the plain build does not show it; "reverse" for lanes that run
            in descending order and work that is deferred.
        units: For a header, the sources to compile again.
    """

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    under: str = ""
    units: tuple[str, ...] = ()


def mutated(mutant: Mutant) -> str:
    """The file's text with the fault.

    Raises:
        ValueError: The text to replace does not stand there exactly once.
    """
    text = (CUDA / mutant.file).read_text()
    count = text.count(mutant.find)
    if count != 1:
        raise ValueError(
            f"mutant '{mutant.name}': its text stands {count} times in {mutant.file}; "
            "move it along with the code"
        )
    return text.replace(mutant.find, mutant.replace)


_TENSOR, _FEW = "kernels/matmul_tensor.cu", "kernels/matmul_few.cu"
_ATTENTION, _CACHE_CU = "kernels/attention.cu", "kernels/cache.cu"
_MERGE, _SEEN = "kernels/attention_merge.cu", "kernels/attention_rows.cuh"
_FILTER, _WALK = "kernels/row_filter.cuh", "kernels/verify.cu"
_FORMATS = "kernels/weight_formats.cuh"
_ROW_KERNELS = ("kernels/sampling.cu", _WALK)

MUTANTS = (
    # --- products ---
    Mutant(
        "a dot product's stage is used before it has come",
        _FEW,
        "    copy_async_wait(stages - 2);\n    __syncthreads();  // stage s is there, the results",
        "    __syncthreads();  // stage s is there, the results",
        _PRODUCTS,
    ),
    Mutant(
        "no barrier between the copy of a stage and its use",
        _FEW,
        "    __syncthreads();  // stage s is there, the results of s - 1 are, and",
        "    // the results of s - 1 are, and",
        (*_PRODUCTS, "-k", "Q4_K-37"),
        "tsan",
    ),
    Mutant(
        "the last stage of the chains is skipped",
        _FEW,
        "for (int s = 0; s <= total; ++s) {",
        "for (int s = 0; s < total; ++s) {",
        _PRODUCTS,
    ),
    Mutant(
        "the chains read the other half of the results",
        _FEW,
        "results + (s - 1) % 2 * kStageBlocks",
        "results + s % 2 * kStageBlocks",
        _PRODUCTS,
    ),
    Mutant(
        "fragments of a in the wrong order of registers",
        _TENSOR,
        "{low.quads.x, high.quads.x, low.quads.y, high.quads.y}",
        "{low.quads.x, low.quads.y, high.quads.x, high.quads.y}",
        _PRODUCTS,
    ),
    Mutant(
        "scales of the wrong half of a pair of octets",
        _TENSOR,
        "i < 2 ? low.terms : high.terms",
        "i % 2 == 0 ? low.terms : high.terms",
        _PRODUCTS,
    ),
    Mutant(
        "sums stored at the fragment's transposed places",
        _TENSOR,
        "const int row = first_row + r * kTileRows + 2 * (lane % 4) + i % 2;",
        "const int row = first_row + r * kTileRows + (lane % 4) + 4 * (i % 2);",
        _PRODUCTS,
    ),
    Mutant(
        "weight rows that do not exist are written",
        _TENSOR,
        "if (column < end_column && row < rows) {",
        "if (column < end_column) {",
        (*_PRODUCTS, "-k", "37-256 and Q4"),
        "asan",
    ),
    Mutant(
        "no barrier before a stage is overwritten",
        _TENSOR,
        "    __syncthreads();  // stage s is there, and everybody is done with the one before",
        "",
        (*_PRODUCTS, "-k", "Q4_0-50-96"),
        "tsan",
    ),
    Mutant(
        "the table of scales is read by lanes that did not wait for it",
        _TENSOR,
        "count, table);\n    __syncwarp();",
        "count, table);",
        (*_PRODUCTS, "-k", "Q6_K-37"),
        "tsan",
    ),
    Mutant(
        "the high bits of the neighbour's minimum",
        _FORMATS,
        "header[(4 + sub / 2) * kGroupRows + row] >> (4 * (sub % 2))",
        "header[(4 + sub / 2) * kGroupRows + row] >> (4 - 4 * (sub % 2))",
        (*_PRODUCTS, "-k", "Q4_K"),
        units=(_FEW, _TENSOR),
    ),
    Mutant(
        "the second half of a block with the scale of the first",
        _FORMATS,
        "out.d[1] = d * signed_at(scales + kGroupRows, row);",
        "out.d[1] = d * signed_at(scales, row);",
        (*_PRODUCTS, "-k", "Q6_K"),
        units=(_FEW, _TENSOR),
    ),
    Mutant(
        "a thread block of the second matrix works on its wrong rows",
        "kernels/product_part.cuh",
        "part = {all.weights[i], all.outs[i], part.block - before};",
        "part = {all.weights[i], all.outs[i], part.block};",
        _MLP,
        units=(_FEW, _TENSOR),
    ),
    Mutant(
        "the sum of a half block lacks a quarter",
        "kernels/quantize.cuh",
        "for (int apart = 8; apart > 0; apart /= 2) sum +=",
        "for (int apart = 4; apart > 0; apart /= 2) sum +=",
        (*_PRODUCTS, "-k", "Q2_K"),
        units=("kernels/rows.cu",),
    ),
    Mutant(
        "the last step of an odd number is skipped",
        "kernels/matmul_float.cu",
        "steps - full * W::kPerLane, acc);",
        "steps - full * W::kPerLane - 1, acc);",
        (*_PRODUCTS, "-k", "F16"),
    ),
    # --- mixtures of experts ---
    Mutant(
        "the weights of an expert are those of the first",
        "kernels/product_part.cuh",
        "part.weight = part.weight.matrix(matrix);",
        "part.weight = part.weight.matrix(0);",
        (*_EXPERTS, "-k", "Q8_0 or several_types"),
        units=(_FEW, _TENSOR),
    ),
    Mutant(
        "an expert's columns begin in the octet of the one before",
        "kernels/experts.cu",
        "octets += octets_of(counts[e]);",
        "octets += counts[e] / kOctet;",
        (*_EXPERTS, "-k", "Q8_0"),
    ),
    Mutant(
        "an expert's last row is left out",
        "kernels/experts.cu",
        "parts[count_before(counts, e)] = {e, first, next};",
        "parts[count_before(counts, e)] = {e, first, next - 1};",
        (*_EXPERTS, "-k", "Q8_0"),
    ),
    Mutant(
        "experts are counted before all of them are",
        "kernels/experts.cu",
        "counts[e] = count;\n  }\n  __syncthreads();",
        "counts[e] = count;\n  }",
        (*_EXPERTS, "-k", "Q8_0"),
        "reverse",
    ),
    Mutant(
        "logits become terms of the softmax while others compare them",
        "kernels/experts.cu",
        "if (before == 0) largest[0] = scores[e];\n  }\n  __syncthreads();",
        "if (before == 0) largest[0] = scores[e];\n  }",
        (*_EXPERTS, "-k", "test_a_layer_of_several_types and 5"),
        "tsan",
    ),
    Mutant(
        "the bias of expert 0 for all",
        "kernels/hidden.cu",
        "const int expert = columns.sources == nullptr ? 0 : columns.sources[column].expert;",
        "const int expert = 0;",
        (*_EXPERTS, "-k", "test_biases"),
    ),
    # --- norms and cache ---
    Mutant(
        "no barrier before a norm is used",
        "kernels/rows.cu",
        "shared_inv[0] = 1.0f / sqrtf(mean + eps);\n  }\n  __syncthreads();",
        "shared_inv[0] = 1.0f / sqrtf(mean + eps);\n  }",
        _NORM,
        "tsan",
    ),
    Mutant(
        "columns that fill up an octet are read",
        "kernels/rows.cu",
        "const int row = source_row(columns, to.column);",
        "const int row = to.column;",
        (*_PRODUCTS, "-k", "37-256 and Q4"),
        "asan",
    ),
    Mutant(
        "a key is stored before it is rotated",
        _CACHE_CU,
        "  rotate(shape, cos_sin, k + at, key);\n  __syncthreads();",
        "  rotate(shape, cos_sin, k + at, key);",
        (_DENSE, "-k", "test_qkv"),
        "reverse",
    ),
    Mutant(
        "the gather of kept rows takes the next row",
        _CACHE_CU,
        "rows + static_cast<std::int64_t>(kept[i]) * row_bytes",
        "rows + static_cast<std::int64_t>(kept[i] - 1) * row_bytes",
        (_CACHE, "-k", "kept or keep"),
    ),
    # --- attention ---
    Mutant(
        "the causal mask lets a row see the next one",
        _SEEN,
        "row + 1 : s.lengths[row]",
        "row + 2 : s.lengths[row]",
        (_CACHE,),
        units=(_ATTENTION, _MERGE),
    ),
    Mutant(
        "a tree's row sees its elder siblings",
        _ATTENTION,
        "if (s.paths == nullptr || position < s.base) return position;",
        "return position;",
        (_CACHE,),
    ),
    Mutant(
        "the last chunk is not merged",
        _MERGE,
        "(positions_of(s, row) + kAttentionChunk - 1) / kAttentionChunk;",
        "positions_of(s, row) / kAttentionChunk;",
        (_CACHE,),
    ),
    Mutant(
        "rows of a tree share reads in the chunk where they part",
        _ATTENTION,
        "behind * kAttentionChunk <= s.base;",
        "round * kAttentionChunk <= s.base;",
        (_CACHE,),
    ),
    Mutant(
        "no barrier between scores and weights",
        _ATTENTION,
        "(s, tile, begin, begin + step, first, most);\n    __syncthreads();",
        "(s, tile, begin, begin + step, first, most);",
        (_CACHE, "-k", "test_attention and chain and F16"),
        "tsan",
    ),
    Mutant(
        "memory is ordered by a shuffle only",
        _ATTENTION,
        "    __syncwarp();  // all have read: a shuffle does not order memory\n",
        "",
        (_CACHE, "-k", "test_attention and chain and F16"),
        "tsan",
    ),
    Mutant(
        "the groups of a block merge their chunks as they come",
        _ATTENTION,
        "group < groups_of_block(); ++group) {\n        __syncthreads();\n",
        "group < groups_of_block(); ++group) {\n",
        (_CACHE, "-k", "test_spans"),
        "reverse",
    ),
    Mutant(
        "the first chunk of a span is merged into the span before",
        _ATTENTION,
        "const bool fresh = chunk == from || first_seen(s, row_of(tile, query)) >= first;",
        "const bool fresh = first_seen(s, row_of(tile, query)) >= first;",
        (_CACHE, "-k", "test_spans"),
    ),
    Mutant(
        "the chunks of all spans are merged in one row",
        _MERGE,
        "const int span_units = kSpanChunks / s.unit_chunks;",
        "const int span_units = 1;",
        (_CACHE, "-k", "test_spans"),
    ),
    # --- sampling and acceptance ---
    Mutant(
        "a reduction's result is overwritten while it is read",
        "kernels/block_reduce.cuh",
        "  __syncthreads();  // whoever still reads the last result\n",
        "",
        (_SAMPLING, "-k", "test_distributions"),
        "tsan",
        _ROW_KERNELS,
    ),
    Mutant(
        "ties go to the highest id",
        _FILTER,
        "(0xffffffffu - static_cast<std::uint32_t>(id))",
        "static_cast<std::uint32_t>(id)",
        (_SAMPLING,),
        units=_ROW_KERNELS,
    ),
    Mutant(
        "top-p takes one token too many",
        _FILTER,
        "if (digit.before + weights[i] >= target) {",
        "if (digit.before + weights[i] > target) {",
        (_SAMPLING,),
        units=_ROW_KERNELS,
    ),
    Mutant(
        "every node draws with the noise of the pending token's position",
        "kernels/sampling.cu",
        "rule.position + depth",
        "rule.position",
        (_SAMPLING,),
    ),
    Mutant(
        "siblings share a coin",
        _WALK,
        "RngPurpose::kAccept, sibling++}",
        "RngPurpose::kAccept, (sibling++, 0u)}",
        (_SAMPLING, _VERIFY, "-k", "cuda_emu or walks"),
    ),
    Mutant(
        "a rejected token keeps its share",
        _WALK,
        "    left -= shares[token];\n",
        "",
        (_SAMPLING, _VERIFY, "-k", "cuda_emu or walks"),
    ),
    Mutant(
        "a node is judged by its parent's logits",
        _WALK,
        "rows.weight + static_cast<std::size_t>(node + 1) * rows.vocab",
        "rows.weight + static_cast<std::size_t>(node < 0 ? 0 : node) * rows.vocab",
        (_SAMPLING,),
    ),
    Mutant(
        "the recovered token's running sum lacks the run before",
        _WALK,
        "  for (int i = 0; i < thread; ++i) running += sums[i];",
        "  for (int i = 0; i + 1 < thread; ++i) running += sums[i];",
        (_SAMPLING, _VERIFY, "-k", "cuda_emu or walks"),
    ),
    # --- tokens that stay on the device ---
    Mutant(
        "an embedding comes from the neighbouring group of rows",
        "kernels/embed.cu",
        "static_cast<std::size_t>(row / kGroupRows);",
        "static_cast<std::size_t>(row / kGroupRows ^ 1);",
        (_DENSE, "-k", "embed_rows"),
    ),
    Mutant(
        "the mass of a drawn token's distribution is not looked up",
        _WALK,
        "    if (row >= 0) tree.drafts[row].total = drawn.total;\n",
        "",
        (_SAMPLING, "-k", "in_place"),
    ),
    Mutant(
        "tokens of the same weight share a rank",
        "kernels/sampling.cu",
        "ranks_before(found.values[j], found.ids[j], found.values[i], found.ids[i])",
        "found.values[j] > found.values[i]",
        (_SAMPLING, "-k", "ranks"),
    ),
    # --- host code ---
    Mutant(
        "streams that an event should order are not ordered",
        "cuda_backend.cpp",
        "  wait_for_event(second.stream(), first.event().handle());\n",
        "",
        ("tests/cuda_emu/test_heads.py", "-k", "medusa and greedy"),
        "reverse",
    ),
    Mutant(
        "a pass begins one position too far",
        "cuda_attention.cpp",
        "host.push_back(segment.base);",
        "host.push_back(segment.base + 1);",
        (_CACHE,),
    ),
)
