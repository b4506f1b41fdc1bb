#include "attention_plan.h"

#include <algorithm>

namespace interlingua {
namespace {

constexpr int32_t kTaskQueries = 48;  // a multiple of every kernel's tile of queries
constexpr int32_t kTileQueries = 6;   // of the vector kernels: so many share one reading of KV
constexpr int32_t kMostTile = 16;     // of any kernel
constexpr int32_t kFewQueries = 48;   // a sequence with more has work for all threads without being spread or shared
constexpr int64_t kLeastShare = 512;  // positions read: less is not worth a task of its own
constexpr size_t kMostParts = size_t(16) << 20;  // floats, 64 MiB: beyond them queries keep to one pass
constexpr int32_t kTableStep = kAttentionBlock / kKvBlock;

const int32_t* table_of(const StepInput& input, int32_t sequence) {
  return input.block_tables + int64_t(sequence) * input.max_blocks;
}

// Whole attention blocks that every row of the sequence sees.
int32_t whole_blocks(const StepInput& input, int32_t sequence) {
  return (input.positions[input.offsets[sequence]] + 1) / kAttentionBlock;
}

int32_t all_blocks(const StepInput& input, int32_t sequence) {
  return input.positions[input.offsets[sequence + 1] - 1] / kAttentionBlock + 1;
}

size_t part_floats(const StepInput& input, const AttentionPlan::Shape& shape, int32_t sequence) {
  const size_t rows = size_t(input.offsets[sequence + 1] - input.offsets[sequence]);
  const size_t heads = size_t(shape.kv_heads) * size_t(shape.heads_per_kv);
  return rows * heads * size_t(all_blocks(input, sequence)) * size_t(kPartHead + shape.head_dim);
}

int64_t reads(const AttentionTask& task) {
  const int32_t tiles = (task.end - task.begin + kTileQueries - 1) / kTileQueries;
  return int64_t(task.block_end - task.block_begin) * kAttentionBlock * tiles;
}

// Pieces of a task's blocks, each two at the least and worth about a share.
int32_t piece_count(const AttentionTask& task, int64_t share) {
  return int32_t(std::max<int64_t>(1, std::min<int64_t>((task.block_end - task.block_begin) / 2, reads(task) / share)));
}

// Queries of a task. Where as many as can be are worth more than a share: half of them all, in whole tiles (of the vector
// kernels, where there are not two of the kernel's own), or (of more than a task's) a tile of any kernel.
int32_t task_queries(AttentionTask task, int64_t share, int32_t kernel_tile) {
  const int32_t queries = task.end, tile = kernel_tile && queries >= 2 * kernel_tile ? kernel_tile : kTileQueries;
  const int32_t tiles = (queries + tile - 1) / tile;
  task.end = std::min(queries, kTaskQueries);
  if (reads(task) <= share) return kTaskQueries;
  return queries <= kTaskQueries ? (tiles + 1) / 2 * tile : kMostTile;
}

}  // namespace

void AttentionPlan::make(const StepInput& input, const Shape& shape, int threads) {
  tasks_.clear();
  merges_.clear();
  rows_.clear();
  candidates_.clear();
  shared_.assign(size_t(input.sequences), 0);
  part_floats_ = 0;
  room_ = kMostParts;
  for (int32_t r = 0; r < input.rows; r++) rows_.push_back({r, input.positions[r], 0, 0});
  if (!shape.windows) find_groups(input, shape);

  int64_t work = 0;
  for (int32_t s = 0; s < input.sequences; s++) {
    const int32_t queries = (input.offsets[s + 1] - input.offsets[s]) * shape.heads_per_kv;
    work += shape.kv_heads * reads({s, 0, 0, 0, queries, 0, all_blocks(input, s), false});
  }
  // Finer than threads need, so that the last to finish is short.
  const int64_t share = threads == 1 ? INT64_MAX : std::max(kLeastShare, work / (threads * 4));
  for (int32_t s = 0; s < input.sequences; s++) add_sequence(input, shape, s, share);
  for (size_t begin = 0, end; begin < candidates_.size(); begin = end) {
    end = begin + 1;
    while (end < candidates_.size() && candidates_[end].first == candidates_[begin].first) end++;
    if (shared_[size_t(candidates_[begin].second)]) add_group(input, shape, begin, end, share);
  }
  if (parts_.size() < part_floats_) {
    parts_.clear();  // nothing to keep
    parts_.resize(part_floats_);
  }
}

// Sequences whose tables begin with the same KV block, and how many whole attention blocks all of a group have in common.
void AttentionPlan::find_groups(const StepInput& input, const Shape& shape) {
  for (int32_t s = 0; s < input.sequences; s++) {
    const int32_t queries = (input.offsets[s + 1] - input.offsets[s]) * shape.heads_per_kv;
    if (queries <= kFewQueries && whole_blocks(input, s)) candidates_.push_back({table_of(input, s)[0], s});
  }
  std::sort(candidates_.begin(), candidates_.end());
  for (size_t begin = 0, end; begin < candidates_.size(); begin = end) {
    const int32_t* first = table_of(input, candidates_[begin].second);
    int32_t common = whole_blocks(input, candidates_[begin].second);
    for (end = begin + 1; end < candidates_.size() && candidates_[end].first == candidates_[begin].first; end++) {
      const int32_t* other = table_of(input, candidates_[end].second);
      const int32_t most = std::min(common, whole_blocks(input, candidates_[end].second)) * kTableStep;
      common = int32_t(std::mismatch(first, first + most, other).first - first) / kTableStep;
    }
    size_t floats = 0;
    for (size_t i = begin; i < end; i++) floats += part_floats(input, shape, candidates_[i].second);
    if (end - begin < 2 || floats > room_) continue;
    room_ -= floats;
    for (size_t i = begin; i < end; i++) shared_[size_t(candidates_[i].second)] = common;
  }
}

void AttentionPlan::add_sequence(const StepInput& input, const Shape& shape, int32_t sequence, int64_t share) {
  const int32_t first = input.offsets[sequence], end = input.offsets[sequence + 1];
  const int32_t blocks = all_blocks(input, sequence), shared = shared_[size_t(sequence)];
  AttentionTask task{sequence, 0, size_t(first), 0, (end - first) * shape.heads_per_kv, shared, blocks, false};
  const size_t floats = part_floats(input, shape, sequence);
  const bool spread = shared > 0 || (task.end <= kFewQueries && floats <= room_);
  const int32_t size = shared > 0 ? kTaskQueries : task_queries(task, share, shape.tile);
  const int32_t pieces = spread ? piece_count({sequence, 0, 0, 0, std::min(task.end, size), shared, blocks, false}, share) : 1;
  task.parts = shared > 0 || pieces > 1;
  if (task.parts && !shared) room_ -= floats;  // groups have theirs
  for (int32_t r = first; task.parts && r < end; r++) {
    rows_[size_t(r)].parts = int64_t(part_floats_);
    rows_[size_t(r)].part_blocks = blocks;
    part_floats_ += floats / size_t(end - first);
  }
  for (task.kv_head = 0; task.kv_head < shape.kv_heads; task.kv_head++) {
    cut(task, size, pieces);
    if (task.parts) merges_.push_back(task);
  }
}

void AttentionPlan::add_group(const StepInput& input, const Shape& shape, size_t begin, size_t end, int64_t share) {
  const size_t rows = rows_.size();
  for (size_t i = begin; i < end; i++)
    for (int32_t s = candidates_[i].second, r = input.offsets[s]; r < input.offsets[s + 1]; r++)
      rows_.push_back(AttentionRow(rows_[size_t(r)]));
  const int32_t sequence = candidates_[begin].second, queries = int32_t(rows_.size() - rows) * shape.heads_per_kv;
  AttentionTask task{sequence, 0, rows, 0, queries, 0, shared_[size_t(sequence)], true};
  const int32_t pieces = piece_count({sequence, 0, rows, 0, std::min(queries, kTaskQueries), 0, task.block_end, true}, share);
  for (task.kv_head = 0; task.kv_head < shape.kv_heads; task.kv_head++) cut(task, kTaskQueries, pieces);
}

void AttentionPlan::cut(AttentionTask task, int32_t size, int32_t pieces) {
  const int32_t queries = task.end, begin = task.block_begin, blocks = task.block_end - task.block_begin;
  for (task.begin = 0; task.begin < queries; task.begin += size) {
    task.end = std::min(queries, task.begin + size);
    for (int32_t p = 0; p < pieces; p++) {
      task.block_begin = begin + blocks * p / pieces;
      task.block_end = begin + blocks * (p + 1) / pieces;
      if (task.block_begin < task.block_end) tasks_.push_back(task);
    }
  }
}

}  // namespace interlingua
