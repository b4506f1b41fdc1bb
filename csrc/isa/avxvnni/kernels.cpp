// AVX2 with VPDPBUSD on its registers: client CPUs without AVX-512.
#include "kernel_table.h"

#include <immintrin.h>

namespace interlingua {
namespace {

constexpr int kRowTile = 2, kIntRowTile = 4, kTwoTermRowTile = 3, kIntBlocks = 1;
constexpr int kWideQueries = 3;  // up to so many queries take two blocks of lanes at once

#include "isa/avx2/vec.h"

#include "isa/avxvnni/dot.h"

#include "generic/sums.inl"

#include "generic/kernels.inl"

constexpr const char* kName = "avxvnni";
#include "generic/table.inl"

}  // namespace

const KernelTable* avxvnni_kernels() { return &kTable; }

}  // namespace interlingua
