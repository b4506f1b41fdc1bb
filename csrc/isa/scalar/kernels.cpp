#include "kernel_table.h"

#include <cmath>

namespace interlingua {
namespace {

constexpr int kRowTile = 4, kIntRowTile = 4, kTwoTermRowTile = 4, kIntBlocks = 1;
constexpr int kWideQueries = 3;  // up to so many queries take two blocks of lanes at once

#include "isa/scalar/vec.h"

#include "generic/sums.inl"

#include "generic/kernels.inl"

void linear(const LinearArgs& args, int32_t begin, int32_t end) { linear_generic(args, begin, end); }
void attention(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  attention_generic(args, kv_head, begin, end);
}

constexpr KernelTable kTable{"scalar", linear, prepare, prepare_tile, attention, attention_merge, rope, store_kv, vocab_stats, exp_scaled};

}  // namespace

const KernelTable* scalar_kernels() { return &kTable; }

}  // namespace interlingua
