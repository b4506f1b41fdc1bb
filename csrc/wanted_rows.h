// The part of a batch whose logits are wanted. Once the last layer has stored its keys and values, nobody reads the other
// rows of a prompt again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "step.h"

namespace interlingua {

class WantedRows {
 public:
  // The step over those rows alone: their sequences, positions and adapters, in the batch's order. Valid as long as `input`
  // and until the next call; `input` itself where all rows are wanted.
  const StepInput& choose(const StepInput& input);

  // [rows of the chosen step] where each was in the batch, ascending.
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  StepInput step_;
  std::vector<int32_t> place_;  // [rows of the batch] in the chosen step, or -1
  std::vector<int32_t> rows_, tokens_, positions_, offsets_, tables_, logit_index_, adapter_of_;
};

}  // namespace interlingua
