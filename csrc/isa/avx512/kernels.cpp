#include "kernel_table.h"

#include <immintrin.h>

namespace interlingua {
namespace {

constexpr int kRowTile = 8, kIntRowTile = 6, kTwoTermRowTile = 6, kIntBlocks = 2;
constexpr int kWideQueries = 6;  // up to so many queries take two blocks of lanes at once

#include "isa/avx512/vec.h"

#include "generic/sums.inl"

#include "generic/kernels.inl"

constexpr const char* kName = "avx512";
#include "generic/table.inl"

}  // namespace

const KernelTable* avx512_kernels() { return &kTable; }

}  // namespace interlingua
