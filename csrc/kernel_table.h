// The typed table behind which every ISA tier stands, and the plain structs that cross it.
//
// Numerics are part of the contract: every tier gives the same bits, for any number of rows, any split over threads
// and any chunking of a prompt (docs/numerics.md). Only PODs and raw pointers here: objects of an ISA folder may
// define no weak symbols.
#pragma once

#include <cstddef>
#include <cstdint>

namespace interlingua {

constexpr int kLanes = 16;             // outputs (or positions) that are computed side by side
constexpr int kGroup = 32;             // inputs that share a scale, and the length of one bf16 product chain
constexpr int kKvBlock = 32;           // positions in a KV block
constexpr int kAttentionBlock = 256;   // positions whose softmax is computed alone before merging
constexpr int kPartHead = 16;          // floats before a part's values: its maximum, its sum, and none

enum class WeightKind : int32_t { kInt4 = 0, kInt8 = 1, kBf16 = 2 };

// How the inputs of a linear layer are held: one int8 term per input, two int8 terms (16 bits), or bf16.
enum class ActivationKind : int32_t { kInt8 = 0, kInt16 = 1, kBf16 = 2 };

// A packed weight matrix [n outputs, k inputs], cut into blocks of 16 outputs x 32 inputs, ordered [n/16][k/32].
//   int4: quants 256 bytes: byte 64v+4o+i holds input 4v+i of output o in its low nibble, 16+4v+i in its high one;
//         scales 64 bytes: 16 fp16 d, then 16 fp16 m; value = d*q + m, q in 0..15.
//   int8: quants 512 bytes: byte 64v+4o+i holds input 4v+i of output o plus 128; scales 32 bytes: 16 fp16 d.
//   bf16: quants 1024 bytes: [16 pairs][16 outputs][2], which is also AMX's B tile; no scales.
struct Weight {
  WeightKind kind;
  int32_t n, k;  // n is a multiple of 16 (padded with zeros), k of 32, or (bf16) of 16: inputs above it must be zero
  const uint8_t* quants;
  const uint8_t* scales;
};

// Inputs of a linear layer, in tiles of 16 rows x 32 inputs, ordered [row/16][k/32][row%16][32] (the per-group arrays
// without the last dimension): a tile is what AMX loads, and what a few rows need lies side by side.
constexpr int kTileRows = 16;
struct Activations {
  int8_t* high;      // int8: the value; int16: the high term, value = scale * (256*high + low)
  int8_t* low;       // int16 alone
  float* scale;      // per group
  float* sum;        // per group: scale * sum of its integers
  int32_t* int_sum;  // per group
  uint16_t* bf16;
  float* rounded;    // the bf16 values as float32

  // Index of (row, group) in the per-group arrays; times 32 in the others. `groups` is k/32.
  static int64_t at(int32_t row, int32_t group, int32_t groups) {
    return (int64_t(row / kTileRows) * groups + group) * kTileRows + row % kTileRows;
  }
  // The rows from `row` on, the first of a tile.
  Activations from(int32_t row, int32_t groups) const {
    const int64_t group = at(row, 0, groups), value = group * kGroup;
    const auto move = [](auto* array, int64_t by) { return array ? array + by : array; };
    return {move(high, value), move(low, value), move(scale, group), move(sum, group),
            move(int_sum, group), move(bf16, value), move(rounded, value)};
  }
};

enum class Epilogue : int32_t {
  kStore = 0,     // out[r][n] = y (+ bias)
  kAdd = 1,       // out[r][n] += y (+ bias)
  kSiluGate = 2,  // 16-blocks alternate gate, up: out[r][n/2] = silu(gate) * up
};

struct LinearArgs {
  Weight weight;
  Activations in;
  ActivationKind kind;
  int32_t rows;
  float* out;
  int64_t out_stride;  // floats
  const float* bias;   // [n] or null
  Epilogue epilogue;
  // What adapters add to y before the epilogue (lora.h): row r adds row place[r] of `delta`, or nothing where that is -1.
  const float* delta = nullptr;
  int64_t delta_stride = 0;        // floats
  const int32_t* place = nullptr;  // [rows]
  // bf16 alone: 16-block b of the outputs reads inputs of its own, `slices[b] * slice_stride` values on; null = all the same.
  const int32_t* slices = nullptr;  // [n/16]
  int64_t slice_stride = 0;

  int64_t slice(int32_t block) const { return slices ? slices[block] * slice_stride : 0; }
};

// How keys and values are held. A head's part of a KV block (positions p, dimensions d) is
//   half: fp16: keys [p/16][d][p%16], values [p][d];
//   int8: bytes plus 128: keys [p/16][d/4][p%16][d%4], values [p/4][d][p%4]; then float32 scales: 32 keys', 32 values'.
enum class KvKind : int32_t { kHalf = 0, kInt8 = 1 };

constexpr int64_t kv_head_bytes(KvKind kind, int32_t head_dim) {
  return kind == KvKind::kHalf ? int64_t(4) * kKvBlock * head_dim : int64_t(2) * kKvBlock * (head_dim + int64_t(sizeof(float)));
}

// A row of the batch, as attention sees it.
struct AttentionRow {
  int32_t row, position;
  int32_t part_blocks;  // attention blocks that its parts have room for
  int64_t parts;        // where they begin: [heads][part_blocks][kPartHead + head_dim]
};

struct AttentionArgs {
  const float* q;  // the batch's; row r, head h at q + r*q_stride + h*head_dim
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  KvKind kind;
  const uint8_t* kv;            // this layer's part of block 0: [kv_heads][kv_head_bytes]
  int64_t block_stride;         // bytes from one block to the next
  const int32_t* block_table;   // of the sequence, or of one of those that share the blocks in question
  const AttentionRow* rows;     // query i is head i % heads_per_kv of row i / heads_per_kv
  int32_t heads_per_kv, head_dim;
  int32_t window;  // a query sees the last `window` positions, itself included; 0 = all
  float scale;
  int32_t block_begin, block_end;  // attention blocks to look at
  // Where queries see blocks in several tasks: each leaves there what comes of a block, for `attention_merge`. Null = merge
  // at once; the bits are the same.
  float* parts;
};

// Logits are usable while all of them lie within (-kLogitLimit, kLogitLimit): far beyond what a model computes, and safe to
// subtract and to scale. A NaN among them would be taken for the largest or be lost, depending on who compares. Rows of
// logits are padded to whole lanes with the lowest usable value.
constexpr float kLogitLimit = 1e30f;
constexpr float kLogitPad = -0x1.93e592p+99f;

struct VocabStats {
  float max;
  int32_t argmax;  // lowest id among equals
  float exp_sum;   // sum exp(x - max)
  bool usable;     // else the others mean nothing
};

// One product of tiles, for tests. Shapes that the tile unit refuses end the process there.
enum class TileProductKind : int32_t { kSignedSigned, kSignedUnsigned, kUnsignedSigned, kUnsignedUnsigned, kBf16 };
struct TileOperand {
  const uint8_t* data;
  int32_t rows, row_bytes;
};
struct TileProduct {
  TileProductKind kind;
  TileOperand a, b, c;
  uint8_t* out;  // c + a b
  uint8_t palette;
};

struct KernelTable {
  const char* name;

  // y[r][16b..16b+16) for 16-blocks b in [begin, end); begin and end are even for kSiluGate.
  void (*linear)(const LinearArgs& args, int32_t begin, int32_t end);

  // x[k] -> one row of activations; `norm` (may be null) is RMSNorm's weight, applied with `eps` first.
  void (*prepare)(const float* x, int32_t k, const float* norm, float eps, const Activations& out, int32_t row,
                  bool want_int8, bool want_int16, bool want_bf16, float* scratch);

  // The 16 rows of a tile, from `row` on and `stride` floats apart, in one int8 term or two: the bits of `prepare`.
  void (*prepare_tile)(const float* x, int64_t stride, int32_t k, const float* norm, float eps, const Activations& out,
                       int32_t row, bool two_terms);

  // Queries [begin, end) of one KV head.
  void (*attention)(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end);

  // Merges the parts of queries, once all of them are there.
  void (*attention_merge)(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end);

  // Rotates pairs (i, i + rotary/2) of each head in place: x[heads][head_dim], cos/sin [rotary/2].
  void (*rope)(float* x, int32_t heads, int32_t head_dim, int32_t rotary, const float* cos, const float* sin);

  // Rounds one head's key and value into place `p` of its part of a KV block; infinities become the largest value.
  void (*store_kv)(KvKind kind, const float* key, const float* value, int32_t head_dim, int32_t p, uint8_t* head);

  VocabStats (*vocab_stats)(const float* x, int32_t n);

  // out[i] = exp((x[i] - max) * inv_temperature); inv_temperature is at most 2e38.
  void (*exp_scaled)(const float* x, int32_t n, float max, float inv_temperature, float* out);

  void (*tile_product)(const TileProduct& product) = nullptr;  // null where the tier has no tiles

  // By WeightKind: with so many rows a thread that reads a weight for itself alone is bound by its units, not by memory.
  int32_t part_rows[3] = {16, 32, 16};
};

// Every tier that was compiled in; null where the machine or the build lacks it is decided in cpu.cpp.
const KernelTable* scalar_kernels();
#if defined(__x86_64__)
const KernelTable* avx2_kernels();
const KernelTable* avxvnni_kernels();
const KernelTable* avx512_kernels();
const KernelTable* amx_kernels();
const KernelTable* amx_emulated_kernels();  // the same source over tiles in software
#endif

}  // namespace interlingua
