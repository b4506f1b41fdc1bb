#include "kernel_table.h"

#include <cmath>

namespace interlingua {
namespace {

constexpr int kRowTile = 4, kIntRowTile = 4, kTwoTermRowTile = 4, kIntBlocks = 1;
constexpr int kWideQueries = 3;  // up to so many queries take two blocks of lanes at once

#include "isa/scalar/vec.h"

#include "generic/sums.inl"

#include "generic/kernels.inl"

constexpr const char* kName = "scalar";
#include "generic/table.inl"

}  // namespace

const KernelTable* scalar_kernels() { return &kTable; }

}  // namespace interlingua
