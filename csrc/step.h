// What one step computes and where its results go: plain structs over arrays that the caller keeps.
#pragma once

#include <cstdint>

namespace interlingua {

class LoraAdapter;

struct StepInput {
  int32_t rows = 0, sequences = 0, max_blocks = 0, logit_rows = 0;
  const int32_t* tokens = nullptr;        // [rows]
  const int32_t* positions = nullptr;     // [rows]
  const int32_t* offsets = nullptr;       // [sequences + 1] first row of each sequence; its rows have rising positions
  const int32_t* block_tables = nullptr;  // [sequences][max_blocks]
  const int32_t* logit_index = nullptr;   // [logit_rows] row of the batch
  const int32_t* slots = nullptr;         // [logit_rows] sampler slot, or -1 to score `targets`
  // [logit_rows] Where slot is -1: the id to score. Elsewhere: the draft that the next row stands on, if that has the
  // same slot; if it is not chosen, the rows behind get kDropped.
  const int32_t* targets = nullptr;
  // [logit_rows] or null: null, or which ids the row may choose (see choose_token), followed by a word that is 1 once the
  // bits are there. Another thread may still write them during the step; a row whose bits are late chooses nothing.
  const uint32_t* const* allowed = nullptr;
  int32_t adapter_count = 0;
  const LoraAdapter* const* adapters = nullptr;  // [adapter_count], all different
  const int32_t* adapter_of = nullptr;           // [sequences] or, without adapters, null: index in `adapters`, or -1
};

struct StepOutput {
  int32_t* ids = nullptr;     // [logit_rows]; or kLate, kUnusable, kDropped, kFailed
  float* logprobs = nullptr;  // [logit_rows]
  float* logits = nullptr;    // [logit_rows][vocab] or null: raw logits, for tests and measurements
};

}  // namespace interlingua
