// Per-request decoding state and the choice of a token from a row of logits.
//
// Order (docs/numerics.md): watermark, repetition penalty, frequency/presence penalty and logit bias, grammar mask,
// temperature, top-k, top-p, typical-p, min-p, choose. Everything after the raw statistics is double precision or exact comparisons in a
// fixed order, so a choice depends on nothing but the row, the parameters, the seed and the position.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernel_table.h"
#include "watermark.h"

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
  double watermark_gamma = 0.0;  // share of green ids; 0 = no watermark
  float watermark_delta = 0.0f;
};

class SamplerState {
 public:
  SamplerState(SamplingParams params, const int32_t* prompt, size_t length);
  const SamplingParams params;
  void append(int32_t id);  // a token of the output
  bool has_penalties() const;
  bool changes_logits() const;  // before temperature and filters

  struct Seen {
    int32_t id, total, output;
  };
  std::vector<Seen> seen;  // distinct ids, in order of first appearance
  int64_t length = 0;      // ids of prompt and output
  int32_t generated = 0;
  int32_t last = 0;  // id before the next one
  std::vector<std::pair<int32_t, float>> top;  // raw alternatives of the last choice, best first

 private:
  void count(int32_t id, bool output);
  std::unordered_map<int32_t, int32_t> index_;
};

constexpr int32_t kLate = -1;      // nothing was chosen: the mask was not there yet
constexpr int32_t kUnusable = -2;  // nothing can be chosen: a logit is not finite, or of 1e30 and more
constexpr int32_t kDropped = -3;   // nothing was chosen: the draft that the row stands on was not chosen
constexpr int32_t kFailed = -4;    // nothing was chosen: the request's own processors threw

struct Choice {
  int32_t id;     // or kUnusable
  float logprob;  // raw model: ln softmax before every processor
};

// Scratch of one thread, reused between rows.
struct SamplerScratch {
  std::vector<float> probabilities, raw, peaks, values;
  std::vector<int32_t> ids;
};

// Chooses for one row. `logits` [padded] is changed in place; entries from `vocab` on are kLogitPad. Leaves the row's
// `top_n` raw alternatives, ties at the last rank included, in `state.top`; does not append.
// `allowed`, if not null, has bit i % 32 of word i / 32 set for each id i that may be chosen, at least one of them;
// an id suppressed by min_new_tokens is chosen where nothing else is allowed.
Choice choose_token(const KernelTable& kernels, float* logits, int32_t vocab, int32_t padded, SamplerState& state,
                    const uint32_t* allowed, uint64_t position, SamplerScratch& scratch, GreenLists& lists);

// The distribution that `choose_token` draws from, 0 where an id was filtered out: out[vocab]. For tests.
void sampling_distribution(const KernelTable& kernels, float* logits, int32_t vocab, int32_t padded,
                           const SamplerState& state, SamplerScratch& scratch, GreenLists& lists, double* out);

// ln softmax of one id.
Choice score_token(const KernelTable& kernels, const float* logits, int32_t padded, int32_t id);

// Philox4x32-10 (Salmon et al. 2011) on (seed, position): a uniform double in [0, 1).
double philox_uniform(uint64_t seed, uint64_t position);

}  // namespace interlingua
