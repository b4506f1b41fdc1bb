// Memory of the model: zeroed pages from the operating system, and weights packed in the layout of kernel_table.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel_table.h"

namespace interlingua {

// Zeroed memory from the operating system; pages come on first touch. Large pages suit what is read as a whole; memory
// that fills up bit by bit (the KV pool) would pay for zeroing 2 MB at each first touch.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, bool large_pages = true);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
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
