#include "kernel_table.h"

#include <immintrin.h>

namespace interlingua {
namespace {

constexpr int kRowTile = 2, kIntRowTile = 4, kTwoTermRowTile = 3, kIntBlocks = 1;
constexpr int kWideQueries = 3;  // up to so many queries take two blocks of lanes at once

#include "isa/avx2/vec.h"

#include "isa/avx2/dot.h"

#include "generic/sums.inl"

#include "isa/avx2/sums.h"

#include "generic/kernels.inl"

constexpr const char* kName = "avx2";
#include "generic/table.inl"

}  // namespace

const KernelTable* avx2_kernels() { return &kTable; }

}  // namespace interlingua
