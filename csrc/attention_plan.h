// How the attention of one step is cut into tasks. The cut decides who computes what and how often KV is read; the bits are
// the same for every cut (docs/numerics.md).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "step.h"

namespace interlingua {

// Queries [begin, end) of one KV head, numbered over `rows` (a place in the plan's rows), in attention blocks
// [block_begin, block_end) of a sequence's table.
struct AttentionTask {
  int32_t sequence, kv_head;
  size_t rows;
  int32_t begin, end;
  int32_t block_begin, block_end;
  bool parts;  // leaves parts to be merged
};

class AttentionPlan {
 public:
  struct Shape {
    int32_t kv_heads = 0, heads_per_kv = 0, head_dim = 0;
    bool windows = false;  // some layer sees only the last positions
    int32_t tile = 0;      // queries that a kernel's tile unit takes at once; 0: it has none
  };

  // Plans a step for `threads` threads:
  // - a sequence's queries go in pieces of whole tiles, small ones where there would be few;
  // - few queries with a long context are spread over it;
  // - sequences that decode from the same KV blocks (one prompt answered several times, a system prompt of many) go
  //   together over those, so that each block is read once for all of them.
  void make(const StepInput& input, const Shape& shape, int threads);

  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const std::vector<AttentionTask>& merges() const { return merges_; }  // once all tasks are done
  const AttentionRow* rows(const AttentionTask& task) const { return rows_.data() + task.rows; }
  float* parts() { return parts_.data(); }

 private:
  void find_groups(const StepInput& input, const Shape& shape);
  void add_sequence(const StepInput& input, const Shape& shape, int32_t sequence, int64_t share);
  void add_group(const StepInput& input, const Shape& shape, size_t begin, size_t end, int64_t share);
  void cut(AttentionTask task, int32_t size, int32_t pieces);  // `size` queries, one of so many pieces of the blocks

  std::vector<AttentionTask> tasks_, merges_;
  std::vector<AttentionRow> rows_;                        // the batch's, then those of each group
  std::vector<std::pair<int32_t, int32_t>> candidates_;   // (first KV block, sequence), by block
  std::vector<int32_t> shared_;                           // [sequences] attention blocks in common with the group
  std::vector<float> parts_;
  size_t part_floats_ = 0;  // that the step's queries leave
  size_t room_ = 0;         // floats of parts that nobody has yet
};

}  // namespace interlingua
