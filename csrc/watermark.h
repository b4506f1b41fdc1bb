// Green lists of the watermark of Kirchenbauer et al. 2023 (arXiv 2301.10226), made as TGI on a CPU and transformers
// ("lefthash") make them: the first floor(vocab * gamma) ids of torch.randperm(vocab), seeded with key * the last id.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace interlingua {

constexpr uint64_t kWatermarkKey = 15485863;

using GreenMask = std::vector<uint8_t>;  // bit id % 8 of byte id / 8: the id is green

GreenMask green_mask(int32_t last_id, int32_t vocab, double gamma);

// Adds `delta` to the green scores. `logits` must be padded to whole bytes of the mask.
void add_to_green(float* logits, const GreenMask& mask, float delta);

// Masks of one vocabulary by last id, the least recently used given up first. Answers repeat their words, so most masks
// are found. Any thread may call `get`; two that miss the same mask at once both make it.
class GreenLists {
 public:
  explicit GreenLists(int32_t vocab, size_t capacity_bytes = size_t(32) << 20) : vocab_(vocab), capacity_(capacity_bytes) {}
  std::shared_ptr<const GreenMask> get(int32_t last_id, double gamma);
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    uint64_t key;
    std::shared_ptr<const GreenMask> mask;
  };
  const int32_t vocab_;
  const size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // most recently used first
  std::unordered_map<uint64_t, std::list<Entry>::iterator> index_;
  size_t bytes_ = 0;
};

}  // namespace interlingua
