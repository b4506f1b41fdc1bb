#include "wanted_rows.h"

namespace interlingua {

const StepInput& WantedRows::choose(const StepInput& input) {
  place_.assign(size_t(input.rows), -1);
  int32_t wanted = 0;
  for (int32_t i = 0; i < input.logit_rows; i++) {
    int32_t& place = place_[size_t(input.logit_index[i])];
    wanted += place < 0;
    place = 0;
  }
  if (wanted == input.rows) return input;  // as whenever all sequences decode
  for (auto* list : {&rows_, &tokens_, &positions_, &tables_, &logit_index_, &adapter_of_}) list->clear();
  offsets_.assign(1, 0);
  for (int32_t s = 0; s < input.sequences; s++) {
    for (int32_t r = input.offsets[s]; r < input.offsets[s + 1]; r++) {
      if (place_[size_t(r)] < 0) continue;
      place_[size_t(r)] = int32_t(rows_.size());
      rows_.push_back(r);
      tokens_.push_back(input.tokens[r]);
      positions_.push_back(input.positions[r]);
    }
    if (int32_t(rows_.size()) == offsets_.back()) continue;
    offsets_.push_back(int32_t(rows_.size()));
    const int32_t* table = input.block_tables + int64_t(s) * input.max_blocks;
    tables_.insert(tables_.end(), table, table + input.max_blocks);
    if (input.adapter_of) adapter_of_.push_back(input.adapter_of[s]);
  }
  for (int32_t i = 0; i < input.logit_rows; i++) logit_index_.push_back(place_[size_t(input.logit_index[i])]);
  step_ = input;
  step_.rows = int32_t(rows_.size());
  step_.sequences = int32_t(offsets_.size()) - 1;
  step_.tokens = tokens_.data();
  step_.positions = positions_.data();
  step_.offsets = offsets_.data();
  step_.block_tables = tables_.data();
  step_.logit_index = logit_index_.data();
  step_.adapter_of = input.adapter_of ? adapter_of_.data() : nullptr;
  return step_;
}

}  // namespace interlingua
