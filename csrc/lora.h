// LoRA (Hu et al. 2021): y += B A x for the rows of sequences that have an adapter, several adapters in one batch.
//
// Rows are gathered by adapter into whole tiles, so that A and B are ordinary bf16 weights and the kernels of linear
// layers do all products: x and A x are rounded to bf16 and summed in the kernels' one order, whatever the batch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernel_table.h"
#include "memory.h"
#include "step.h"
#include "threads.h"

namespace interlingua {

// What an adapter adds to one linear operation, which may compute several layers of the checkpoint at once: its parts
// (q, k, v; or gate, up). The adapter's scale is part of B.
struct LoraLayer {
  std::vector<int32_t> ranks;   // of each part; 0 = the adapter does not change it
  int32_t rank;                 // the highest, padded to a multiple of 16
  PackedWeight a;               // [parts * rank, k]
  PackedWeight b;               // [n, rank]
  std::vector<int32_t> slices;  // [n/16]: the part whose A x a 16-block of outputs takes
};

// Immutable once it is given to a step. Made and destroyed by any thread.
class LoraAdapter {
 public:
  LoraAdapter() = default;
  LoraAdapter(const LoraAdapter&) = delete;
  LoraAdapter& operator=(const LoraAdapter&) = delete;

  void add(int op, LoraLayer layer);
  const LoraLayer* layer(int op) const { return size_t(op) < layers_.size() ? layers_[size_t(op)].get() : nullptr; }
  size_t bytes() const;

 private:
  std::vector<std::unique_ptr<LoraLayer>> layers_;  // by operation
};

// The adapters of the step that runs. Buffers grow with the largest batch so far.
class LoraStep {
 public:
  LoraStep(const KernelTable* kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // Gives each row that has an adapter a place: those of one adapter lie side by side, from a whole tile on.
  void plan(const StepInput& input);
  bool changes(int op) const;

  // Inputs of the operations that read activations `id`: call `open_inputs`, then `take` for each row, from any thread.
  void open_inputs(int id, int32_t width);
  void take(int id, int32_t row, const float* x, const float* norm, float eps, float* scratch) const;

  // Makes `args`, the base kernel's call for operation `op`, add the deltas. They come from tasks of the same run of the
  // pool: first those of A x, whose number is returned, then `up` for blocks [begin, end) before the kernel is called
  // for these. `up` waits for all of A x: without a barrier of its own, since they are the run's common tasks.
  int32_t open(int op, int id, LinearArgs& args);
  void down(int32_t task) noexcept;
  void up(int32_t begin, int32_t end) const;

 private:
  struct Run {
    const LoraAdapter* adapter;
    int32_t first, rows;      // places
    const LoraLayer* layer;   // of the current operation, or null
    int64_t hidden;           // where its A x begins: [parts][tiles][rank in groups of 32][16][32]
    int32_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  };
  struct Inputs {
    int32_t width = 0;
    Buffer bf16, rounded;
  };
  struct Task {
    const Run* run;
    int32_t part, tile, group;
  };

  const KernelTable* kernels_;
  ThreadPool& pool_;
  std::vector<Run> runs_;
  int32_t places_ = 0;               // in whole tiles
  std::vector<int32_t> place_of_;    // [rows] or -1
  std::vector<int32_t> changed_;     // the same for the current operation
  std::vector<Inputs> inputs_;       // by activations
  std::vector<Task> tasks_;          // of A x
  std::atomic<int32_t> done_{0};     // of them
  const Inputs* in_ = nullptr;
  Buffer hidden_bf16_, hidden_rounded_;  // A x
  Buffer delta_;                         // B A x: [places][stride_]
  int64_t stride_ = 0;
};

}  // namespace interlingua
