#include "watermark.h"

#include <numeric>
#include <random>

namespace interlingua {
namespace {

int32_t green_count(int32_t vocab, double gamma) { return int32_t(double(vocab) * gamma); }

}  // namespace

// torch.randperm on a CPU is a Fisher-Yates shuffle from the front over MT19937, whose seed keeps its low 32 bits. The
// places before i no longer change after i swaps, so the shuffle ends where the green list does.
GreenMask green_mask(int32_t last_id, int32_t vocab, double gamma) {
  std::mt19937 random(static_cast<uint32_t>(kWatermarkKey * uint64_t(last_id)));
  thread_local std::vector<int32_t> ids;
  ids.resize(size_t(vocab));
  std::iota(ids.begin(), ids.end(), 0);
  GreenMask mask(size_t(vocab + 7) / 8, 0);
  const uint32_t count = uint32_t(green_count(vocab, gamma)), all = uint32_t(vocab);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t at = i + uint32_t(random()) % (all - i);
    std::swap(ids[i], ids[at]);
    mask[size_t(ids[i]) / 8] |= uint8_t(1 << ids[i] % 8);
  }
  return mask;
}

void add_to_green(float* logits, const GreenMask& mask, float delta) {
  float table[16][4];  // what four bits add
  for (int bits = 0; bits < 16; bits++)
    for (int i = 0; i < 4; i++) table[bits][i] = bits >> i & 1 ? delta : 0.0f;
  for (const uint8_t byte : mask) {
    for (int i = 0; i < 4; i++) logits[i] += table[byte & 15][i];
    for (int i = 0; i < 4; i++) logits[4 + i] += table[byte >> 4][i];
    logits += 8;
  }
}

std::shared_ptr<const GreenMask> GreenLists::get(int32_t last_id, double gamma) {
  const uint64_t key = uint64_t(uint32_t(green_count(vocab_, gamma))) << 32 | uint32_t(last_id);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (const auto found = index_.find(key); found != index_.end()) {
      entries_.splice(entries_.begin(), entries_, found->second);
      return found->second->mask;
    }
  }
  auto mask = std::make_shared<const GreenMask>(green_mask(last_id, vocab_, gamma));
  std::lock_guard<std::mutex> lock(mutex_);
  if (index_.count(key)) return mask;
  entries_.push_front({key, mask});
  index_[key] = entries_.begin();
  bytes_ += mask->size();
  while (bytes_ > capacity_ && entries_.size() > 1) {
    bytes_ -= entries_.back().mask->size();
    index_.erase(entries_.back().key);
    entries_.pop_back();
  }
  return mask;
}

}  // namespace interlingua
