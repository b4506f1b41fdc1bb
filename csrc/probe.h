// Single kernels outside of any model: measurements for bench/kernels.py on synthetic values, and tile products for tests.
#pragma once

#include <cstdint>
#include <string>

#include "kernel_table.h"

namespace interlingua {

// Least seconds of `repeat` calls of one linear layer [n, k] over `rows` rows on `threads` threads.
double time_linear(const std::string& isa, int threads, WeightKind kind, ActivationKind activations, int32_t n, int32_t k,
                   int32_t rows, int32_t repeat);

// The same for RMSNorm and rounding of `rows` rows of `k` inputs.
double time_prepare(const std::string& isa, int threads, ActivationKind activations, int32_t k, int32_t rows, int32_t repeat);

// Least seconds of `repeat` decode steps' attention in one layer: `sequences` of `context` positions, `rows` queries each.
double time_attention(const std::string& isa, int threads, KvKind kind, int32_t sequences, int32_t context, int32_t rows,
                      int32_t kv_heads, int32_t heads_per_kv, int32_t head_dim, int32_t repeat);

// Bytes a second that all threads together read from a buffer of `bytes`.
double read_bandwidth(int threads, size_t bytes, int32_t repeat);

// One tile product as tier `isa` computes it, into `product.out`. Throws std::invalid_argument if it has no tiles.
void tile_product(const std::string& isa, const TileProduct& product);

}  // namespace interlingua
