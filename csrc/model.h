// A model as the engine runs it: packed weights, a KV pool and a flat program of operations that Python emits once at
// load. `step` executes the program over one batch of rows, then chooses or scores tokens.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "kernel_table.h"
#include "lora.h"
#include "memory.h"
#include "sampler.h"
#include "step.h"
#include "threads.h"
#include "wanted_rows.h"

namespace interlingua {

class Model {
 public:
  Model(const std::string& isa, int threads, ActivationKind activations, int32_t max_rows,
        const std::vector<NumaNode>& nodes = {});

  // --- load ---
  int add_weight(WeightKind kind, int32_t n, int32_t k);
  // Row r of `source` becomes output `rows[r]`.
  void fill_weight(int weight, SourceFormat format, const uint8_t* source, size_t bytes, const int32_t* rows, int32_t count);
  int add_vector(const float* values, size_t count);
  void set_kv(KvKind kind, int32_t layers, int32_t blocks, int32_t kv_heads, int32_t head_dim);

  int add_buffer(int32_t width);                          // float32 [max_rows][width]
  int add_activations(int32_t width, bool integer, bool bf16);

  void op_embed(int weight, int out, float scale);
  void op_prepare(int in, int norm, float eps, int activations);  // norm < 0: none
  // Writes from column `column` of `out` on; bias < 0: none. Returns the operation's number, for `add_lora`.
  int op_linear(int activations, int weight, int out, Epilogue epilogue, int bias, int32_t column);
  // Rotates q and k in place (qkv: [q heads | k heads | v heads]) and writes k and v to the pool.
  void op_rope_store(int qkv, int layer, int32_t heads, int32_t rotary, int cos, int sin);
  void op_attention(int qkv, int out, int layer, int32_t heads, int32_t window, float scale);
  // From here on the rows whose logits nobody wants are left out: those of `buffers` move together, and nothing else of a
  // row is read again.
  void op_narrow(std::vector<int> buffers);
  void op_logits(int in, int norm, float eps, int weight, int32_t vocab);

  void clear_ops() { ops_.clear(); }
  float* buffer_row(int buffer, int32_t row) const { return buffers_.at(size_t(buffer)).row(row); }
  // Gives `adapter` matrices for linear operation `op`: a [parts * rank padded to 16, k], b [n, the same padded rank] with
  // the scale in it; ranks [parts]; slices [n/16] as in LoraLayer. May run on any thread, while steps run.
  void add_lora(LoraAdapter& adapter, int op, std::vector<int32_t> ranks, std::vector<int32_t> slices, const float* a,
                size_t a_values, const float* b, size_t b_values) const;

  // --- run ---
  int add_sampler(SamplingParams params, const int32_t* prompt, size_t length);
  void remove_sampler(int slot);
  // (id, raw logprob) of the alternatives to the slot's last choice, best first.
  const std::vector<std::pair<int32_t, float>>& top_tokens(int slot) const { return samplers_.at(slot)->top; }
  size_t sampler_count() const { return samplers_.size(); }
  void step(const StepInput& input, const StepOutput& output);
  void copy_block(int32_t from, int32_t to);
  // Has the system give the pool's next large page of memory from byte `begin` on, which begins a page: a step that is the
  // first to write there would wait for it. What the pool holds stays. Returns where to go on: `kv_bytes` at the end, and
  // where this cannot be done.
  size_t touch_kv(size_t begin);

  // Seconds spent per kind of operation since profiling was switched on, in the order of `op_kinds`.
  void set_profiling(bool on);
  const std::vector<double>& op_seconds() const { return op_seconds_; }
  static std::vector<std::string> op_kinds();

  const char* kernels() const { return kernels_->name; }
  int32_t vocab() const { return vocab_; }
  int threads() const { return pool_.size(); }
  std::string placement() const { return pool_.placement(); }
  size_t weight_bytes() const;
  size_t kv_bytes() const { return kv_.size(); }
  // A block's part of one layer: [kv_heads][kv_head_bytes].
  const uint8_t* kv_block(int32_t layer, int32_t block) const { return kv_layer(layer) + int64_t(block) * block_stride(); }
  size_t kv_layer_bytes() const { return size_t(kv_head_bytes(kv_kind_, head_dim_)) * size_t(kv_heads_); }
  void fill_kv(uint8_t byte) { std::fill_n(kv_.data(), kv_.size(), byte); }
  // Queries of the last step that were merged from parts, over the first layer.
  int32_t merged_queries() const { return merged_queries_; }
  int32_t kv_layers() const { return layers_; }
  int32_t kv_blocks() const { return blocks_; }

 private:
  enum class OpKind { kEmbed, kPrepare, kLinear, kRopeStore, kAttention, kNarrow, kLogits };
  struct Op {
    OpKind kind;
    int a = -1, b = -1, c = -1, d = -1, e = -1;
    int32_t heads = 0, rotary = 0, window = 0;
    float f = 0.0f;
    Epilogue epilogue = Epilogue::kStore;
    std::vector<int> readers = {};  // kPrepare: the linear operations that read its activations
    std::vector<int> buffers = {};  // kNarrow
  };
  struct FloatBuffer {
    int32_t width;
    Buffer data;
    float* row(int32_t r) const { return data.as<float>() + int64_t(r) * width; }
  };
  struct ActivationBuffer {
    int32_t width;
    bool integer, bf16;
    Buffer high, low, scale, sum, int_sum, half, rounded;
    Activations view() const;
  };
  void run(const Op& op, const StepInput& input, const StepOutput& output);
  void run_embed(const Op& op, const StepInput& input);
  void run_prepare(const float* in, int64_t stride, int32_t rows, int norm, float eps, int activations,
                   const std::vector<int>& readers);
  int32_t row_parts(WeightKind kind, int32_t rows) const;
  // `op` is the operation's number where adapters may change it, else -1.
  void run_linear(int activations, const PackedWeight& weight, int32_t rows, float* out, int64_t stride, Epilogue epilogue,
                  const float* bias, int op);
  void run_rope_store(const Op& op, const StepInput& input);
  void run_attention(const Op& op, const StepInput& input);
  const StepInput& narrow(const Op& op, const StepInput& input);
  void plan(const StepInput& input);
  void run_logits(const Op& op, const StepInput& input, const StepOutput& output);
  PackedWeight placed_weight(WeightKind kind, int32_t n, int32_t k) const;
  int new_buffer(int32_t width, int32_t rows);
  int new_activations(int32_t width, bool integer, bool bf16, int32_t rows);
  void expect_vector(int id, int32_t width, const char* what) const;
  AttentionArgs attention_args(const Op& op, const StepInput& input, const AttentionTask& task);
  // The pool is [blocks][layers][kv_layer_bytes]: a sequence that grows touches memory that lies together.
  uint8_t* kv_layer(int layer) const { return kv_.data() + size_t(layer) * kv_layer_bytes(); }
  int64_t block_stride() const { return int64_t(layers_) * int64_t(kv_layer_bytes()); }

  const KernelTable* kernels_;
  ThreadPool pool_;
  LoraStep lora_;
  ActivationKind activation_kind_;
  int32_t max_rows_;
  std::vector<PackedWeight> weights_;
  std::vector<std::vector<float>> vectors_;
  std::vector<FloatBuffer> buffers_;
  std::vector<ActivationBuffer> activations_;
  std::vector<Op> ops_;
  KvKind kv_kind_ = KvKind::kHalf;
  int32_t layers_ = 0, blocks_ = 0, kv_heads_ = 0, head_dim_ = 0;
  Buffer kv_;
  AttentionPlan attention_;
  int32_t merged_queries_ = 0;
  WantedRows wanted_;
  std::vector<int32_t> logit_groups_;
  int32_t heads_per_kv_ = 0;  // the same in all layers
  bool windows_ = false;      // some layer sees only the last positions
  std::map<int, std::unique_ptr<SamplerState>> samplers_;
  int next_slot_ = 0;
  std::optional<GreenLists> green_lists_;
  std::vector<Buffer> scratch_;           // one per thread
  std::vector<SamplerScratch> sampling_;  // one per thread
  Buffer logits_;
  bool profiling_ = false;
  std::vector<double> op_seconds_;
  int logits_buffer_ = -1, logits_activations_ = -1;
  int32_t vocab_ = 0;
};

}  // namespace interlingua
