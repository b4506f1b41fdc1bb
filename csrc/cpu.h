// Which kernel tiers this machine and its operating system can run.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace interlingua {

// All tiers that can run here, slowest first ("scalar" always). "amx-emulated" is for tests and never the last.
std::vector<const KernelTable*> available_kernels();

// The tier called `name`, or the best one for "" and "auto". Throws std::invalid_argument, naming what is available,
// if the build or the machine lacks it.
const KernelTable* choose_kernels(const std::string& name);

// Switches subnormals to zero on the calling thread while it lives: they slow kernels fourfold, and AMX ignores them.
class FlushToZero {
 public:
  FlushToZero();
  ~FlushToZero();
  FlushToZero(const FlushToZero&) = delete;
  FlushToZero& operator=(const FlushToZero&) = delete;

 private:
  unsigned saved_;
};

}  // namespace interlingua
