// Memory of the model: zeroed pages from the operating system, and weights packed in the layout of kernel_table.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_table.h"

namespace interlingua {

constexpr size_t kLargePage = size_t(2) << 20;

// Zeroed memory from the operating system; pages come on first touch, large ones where the system has them.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Has the system give the pages of [begin, end) now, as a first touch would; what they hold stays. `begin` begins a
  // page. Returns 0 or an errno: EINVAL before Linux 5.14.
  int touch(size_t begin, size_t end) const;
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

struct PackedWeight {
  WeightKind kind;
  int32_t n, k;
  Buffer quants, scales;
  Weight view() const { return {kind, n, k, quants.data(), scales.data()}; }
};

enum class SourceFormat : int32_t { kQ4_0, kQ4_1, kQ8_0, kF32, kF16, kBf16 };

// An empty weight, all zeros. n is padded to whole blocks of 16; k must be a multiple of 32,
// or of 16 for bf16.
PackedWeight make_weight(WeightKind kind, int32_t n, int32_t k);

// Packs one row of a checkpoint's matrix, k inputs, as output `output`.
void pack_row(const PackedWeight& weight, SourceFormat format, const uint8_t* source, int32_t output);

}  // namespace interlingua
