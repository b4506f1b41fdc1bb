// Per-request decoding state and the choice of a token from a row of logits.
//
// Order (docs/numerics.md): repetition penalty, frequency/presence penalty and logit bias, grammar mask, temperature, top-k,
// top-p, typical-p, min-p, choose. Everything after the raw statistics is double precision or exact comparisons in a fixed
// order, so a choice depends on nothing but the row, the parameters, the seed and the position.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernel_table.h"

namespace interlingua {

struct SamplingParams {
  bool do_sample = false;
  float temperature = 1.0f;
  int32_t top_k = 0;  // 0 = off
  float top_p = 1.0f, typical_p = 1.0f, min_p = 0.0f;
  float repetition_penalty = 1.0f, frequency_penalty = 0.0f, presence_penalty = 0.0f;
  bool frequency_over_output = false;  // OpenAI's meaning; else TGI's f * count / length over prompt and output
  uint64_t seed = 0;
  int32_t top_n = 0;  // alternatives to report
  std::vector<std::pair<int32_t, float>> logit_bias;
  std::vector<int32_t> suppressed;  // stop ids that may not come before `min_new_tokens`
  int32_t min_new_tokens = 0;
};

class SamplerState {
 public:
  SamplerState(SamplingParams params, const int32_t* prompt, size_t length);
  const SamplingParams params;
  void append(int32_t id);  // a token of the output
  bool has_penalties() const;

  struct Seen {
    int32_t id, total, output;
  };
  std::vector<Seen> seen;  // distinct ids, in order of first appearance
  int64_t length = 0;      // ids of prompt and output
  int32_t generated = 0;

 private:
  void count(int32_t id, bool output);
  std::unordered_map<int32_t, int32_t> index_;
};

struct Choice {
  int32_t id;
  float logprob;  // raw model: ln softmax before every processor
};

// Scratch of one thread, reused between rows.
struct SamplerScratch {
  std::vector<float> probabilities;
  std::vector<int32_t> ids;
  std::vector<std::pair<float, int32_t>> pairs;
};

// Chooses for one row. `logits` [padded] is changed in place; entries from `vocab` on are masked.
// `allowed`, if not null, has bit i % 32 of word i / 32 set for each id i that may be chosen, at least one of them;
// an id suppressed by min_new_tokens is chosen where nothing else is allowed.
// `top_ids`/`top_logprobs` receive at most `top_capacity` raw alternatives, best first, ties at the last rank
// included; their number is returned in *top_count.
Choice choose_token(const KernelTable& kernels, float* logits, int32_t vocab, int32_t padded, const SamplerState& state,
                    const uint32_t* allowed, uint64_t position, SamplerScratch& scratch, int32_t* top_ids,
                    float* top_logprobs, int32_t top_capacity, int32_t* top_count);

// ln softmax of one id.
float score_token(const KernelTable& kernels, const float* logits, int32_t padded, int32_t id);

// Philox4x32-10 (Salmon et al. 2011) on (seed, position): a uniform double in [0, 1).
double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace interlingua
