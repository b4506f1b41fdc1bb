// AVX-512 everywhere; linear layers over many rows run on the tile unit. Integer products are exact and the bf16 tile
// product's order is the reference order, so the bits are those of every other tier.
//
// Compiled twice: as the tier "amx", and with INTERLINGUA_SOFTWARE_TILES as "amx-emulated", which runs wherever AVX-512
// does and exists so that tests see this code's bits there.
#include "kernel_table.h"

#include <immintrin.h>

#include <cstdio>
#include <cstdlib>

namespace interlingua {
namespace {

constexpr int kRowTile = 8, kIntRowTile = 6, kTwoTermRowTile = 6, kIntBlocks = 2;
constexpr int kWideQueries = 6;  // up to so many queries take two blocks of lanes at once

#include "isa/avx512/vec.h"

#include "generic/sums.inl"

#include "generic/kernels.inl"

#include "isa/amx/tiles.h"

// From how many rows on the tile unit is faster than vector products (measured: bench/kernels.py).
constexpr int32_t kTileRowsInt = 9, kTileRowsBf16 = 3;
constexpr int32_t kMaxGroups = 512;  // inputs up to 16,384 per layer go through the unpacked buffer at once

// Products of a group are stored, in one of kRing places, kAhead groups before their float steps: a tile's loads, product and
// store take some 120 cycles from first to last, the float steps of a group 32 (two pipes; Intel's figures).
constexpr int kRing = 4, kAhead = 3;

// Tiles of integer products: 0 to 3 sums, in turn; 4, 5 inputs (16 rows of 32 bytes); 6, 7 weights (8 rows), in turn.
inline void configure_int() {
  TileConfig config;
  for (int t = 0; t < 4; t++) config.set(t, 16, 64);
  for (int t = 4; t < 6; t++) config.set(t, 16, 32);
  for (int t = 6; t < 8; t++) config.set(t, 8, 64);
  tile_configure(config);
}

// Tiles of bf16 products, whole ones: 0 to 3 sums; 4 inputs (16 rows of 32); 5 to 7 weights (16 rows of pairs).
inline void configure_bf16() {
  TileConfig config;
  for (int t = 0; t < kTileCount; t++) config.set(t, 16, 64);
  tile_configure(config);
}

// Unpacks one 16-block of int4 weights to bytes: [groups][8][64].
inline void unpack_int4(const uint8_t* q, int32_t groups, uint8_t* out) {
  for (int32_t g = 0; g < groups; g++, q += 256, out += 512)
    for (int v = 0; v < 4; v++) {
      const W w = load_bytes(q + 64 * v);
      _mm512_storeu_si512(out + 64 * v, low_nibbles(w));
      _mm512_storeu_si512(out + 64 * (v + 4), high_nibbles(w));
    }
}

// The sums of groups whose float steps are still to come, by term.
struct GroupSums {
  alignas(64) int32_t high[kRing][16][kLanes], low[kRing][16][kLanes];
};

// One group's products, into place S of the ring. `b` points to the weights' bytes [8][64], `high` and `low` to the inputs.
template <int S, bool kTwoTerms>
inline void multiply_group(const uint8_t* b, const int8_t* high, const int8_t* low, GroupSums& sums) {
  constexpr int kWeights = 6 + S % 2;
  constexpr int kHigh = kTwoTerms ? S % 2 * 2 : S, kLow = kTwoTerms ? kHigh + 1 : kHigh;
  constexpr int kHighInputs = kTwoTerms ? 4 : 4 + S % 2;
  tile_load<kWeights>(b, 64);
  tile_zero<kHigh>();
  tile_load<kHighInputs>(high, kGroup);
  tile_dpbsud<kHigh, kHighInputs, kWeights>();
  if (kTwoTerms) {
    tile_zero<kLow>();
    tile_load<5>(low, kGroup);
    tile_dpbsud<kLow, 5, kWeights>();
    tile_store<kLow>(sums.low[S], 64);
  }
  tile_store<kHigh>(sums.high[S], 64);
}

// One 16-block over 16 rows. `b` points to bytes [groups][8][64].
template <bool kTwoTerms, bool kInt4>
inline void tile_block_int(const LinearArgs& args, const uint8_t* b, const uint8_t* s, int32_t row, float (*tile)[kLanes]) {
  const int32_t groups = args.weight.k / kGroup;
  const int64_t at = Activations::at(row, 0, groups);
  const int8_t* high = args.in.high + at * kGroup;
  const int8_t* low = kTwoTerms ? args.in.low + at * kGroup : nullptr;
  const float* scale = args.in.scale + at;
  const float* sum = args.in.sum + at;
  const int32_t* int_sum = args.in.int_sum + at;
  GroupSums sums;
  F acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) acc[r] = splat(0.0f);
  const auto multiply = [&](int32_t g) {
    const int64_t inputs = int64_t(g) * kTileRows * kGroup;
    const uint8_t* weights = b + int64_t(g) * 512;
    const int8_t* second = kTwoTerms ? low + inputs : nullptr;
    switch (g % kRing) {
      case 0: return multiply_group<0, kTwoTerms>(weights, high + inputs, second, sums);
      case 1: return multiply_group<1, kTwoTerms>(weights, high + inputs, second, sums);
      case 2: return multiply_group<2, kTwoTerms>(weights, high + inputs, second, sums);
      default: return multiply_group<3, kTwoTerms>(weights, high + inputs, second, sums);
    }
  };
  for (int32_t g = 0; g < kAhead && g < groups; g++) multiply(g);
  for (int32_t g = 0; g < groups; g++) {
    if (g + kAhead < groups) multiply(g + kAhead);  // on the tile unit, while the float steps of group g run here
    const uint16_t* half = reinterpret_cast<const uint16_t*>(s + int64_t(g) * (kInt4 ? 64 : 32));
    const F d = load_half(half);
    const F m = kInt4 ? load_half(half + kLanes) : d;
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) {
      I dot = _mm512_load_si512(sums.high[g % kRing][r]);
      if (kTwoTerms) dot = int_add(int_shift_left_8(dot), _mm512_load_si512(sums.low[g % kRing][r]));
      if (kInt4) {
        acc[r] = int4_group(acc[r], dot, d, m, scale[int64_t(g) * kTileRows + r], sum[int64_t(g) * kTileRows + r]);
      } else {
        dot = int_sub(dot, int_splat(128 * int_sum[int64_t(g) * kTileRows + r]));
        acc[r] = int8_group(acc[r], dot, d, scale[int64_t(g) * kTileRows + r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) store(tile[r], acc[r]);
}

template <int J>
inline void multiply_bf16(bool own, const uint16_t* a, const uint8_t* b) {
  constexpr int kWeights = 5 + J % 3;
  if (own) tile_load<4>(a, 64);  // else the block before has loaded them
  tile_load<kWeights>(b, 64);
  tile_dpbf16ps<J, 4, kWeights>();
}

// N 16-blocks over 16 rows. A product waits for the one before it in its tile of sums, which takes the tile unit three
// times as long as the product itself: hence up to four tiles of sums.
template <int N>
inline void tile_blocks_bf16(const LinearArgs& args, int32_t block, int32_t row, float (*tiles)[kTileRows][kLanes]) {
  constexpr int64_t kWeightTile = 16 * 4 * kLanes, kInputTile = kTileRows * kGroup;
  const int32_t k = args.weight.k, whole = k / kGroup, groups = (k + kGroup - 1) / kGroup;
  const uint8_t* weights[N];
  const uint16_t* inputs[N];
  bool own[N];  // inputs that are not those of the block before
  for (int j = 0; j < N; j++) {
    weights[j] = args.weight.quants + int64_t(block + j) * k * kLanes * 2;
    inputs[j] = args.in.bf16 + args.slice(block + j) + Activations::at(row, 0, groups) * kGroup;
    own[j] = !j || inputs[j] != inputs[j - 1];
  }
  const auto multiply = [&](int32_t g, const uint8_t* const (&b)[N]) {
    multiply_bf16<0>(own[0], inputs[0] + g * kInputTile, b[0]);
    if constexpr (N > 1) multiply_bf16<1>(own[1], inputs[1] + g * kInputTile, b[1]);
    if constexpr (N > 2) multiply_bf16<2>(own[2], inputs[2] + g * kInputTile, b[2]);
    if constexpr (N > 3) multiply_bf16<3>(own[3], inputs[3] + g * kInputTile, b[3]);
  };
  tile_zero<0>();
  if constexpr (N > 1) tile_zero<1>();
  if constexpr (N > 2) tile_zero<2>();
  if constexpr (N > 3) tile_zero<3>();
  for (int32_t g = 0; g < whole; g++) {
    const uint8_t* b[N];
    for (int j = 0; j < N; j++) b[j] = weights[j] + g * kWeightTile;
    multiply(g, b);
  }
  if (whole < groups) {  // half a group: what follows in memory belongs to others
    alignas(64) uint8_t padded[N][kWeightTile] = {};
    const uint8_t* b[N];
    for (int j = 0; j < N; j++) {
      __builtin_memcpy(padded[j], weights[j] + whole * kWeightTile, kWeightTile / 2);
      b[j] = padded[j];
    }
    multiply(whole, b);
  }
  tile_store<0>(tiles[0], 64);
  if constexpr (N > 1) tile_store<1>(tiles[1], 64);
  if constexpr (N > 2) tile_store<2>(tiles[2], 64);
  if constexpr (N > 3) tile_store<3>(tiles[3], 64);
}

template <int N>
inline void linear_blocks_bf16(const LinearArgs& args, int32_t block) {
  alignas(64) float tiles[N][kTileRows][kLanes];
  for (int32_t row = 0; row < args.rows; row += kTileRows) {
    const int rows = args.rows - row < kTileRows ? args.rows - row : kTileRows;
    tile_blocks_bf16<N>(args, block, row, tiles);
    if (args.epilogue == Epilogue::kSiluGate)
      for (int j = 0; j + 1 < N; j += 2) finish_gate(args, block + j, row, rows, tiles[j], tiles[j + 1]);
    else
      for (int j = 0; j < N; j++) finish_block(args, block + j, row, rows, tiles[j]);
  }
}

void linear_bf16(const LinearArgs& args, int32_t begin, int32_t end) {
  configure_bf16();
  int32_t block = begin;
  for (; block + 4 <= end; block += 4) linear_blocks_bf16<4>(args, block);
  switch (end - block) {
    case 3: linear_blocks_bf16<3>(args, block); break;
    case 2: linear_blocks_bf16<2>(args, block); break;
    case 1: linear_blocks_bf16<1>(args, block); break;
    default: break;
  }
  tile_release();
}

// A weight block ready for the tile unit: int4 is unpacked once for all rows.
struct TileWeights {
  const uint8_t* bytes;
  const uint8_t* scales;
};

inline TileWeights open_block(const LinearArgs& args, int32_t block, uint8_t* buffer) {
  const Weight& w = args.weight;
  const int64_t groups = w.k / kGroup;
  if (w.kind == WeightKind::kInt8) return {w.quants + block * groups * 512, w.scales + block * groups * 32};
  unpack_int4(w.quants + block * groups * 256, int32_t(groups), buffer);
  return {buffer, w.scales + block * groups * 64};
}

inline void tile_block(const LinearArgs& args, TileWeights w, int32_t row, float (*tile)[kLanes]) {
  const bool two = args.kind == ActivationKind::kInt16;
  if (args.weight.kind == WeightKind::kInt4)
    two ? tile_block_int<true, true>(args, w.bytes, w.scales, row, tile)
        : tile_block_int<false, true>(args, w.bytes, w.scales, row, tile);
  else
    two ? tile_block_int<true, false>(args, w.bytes, w.scales, row, tile)
        : tile_block_int<false, false>(args, w.bytes, w.scales, row, tile);
}

void linear_int(const LinearArgs& args, int32_t begin, int32_t end) {
  configure_int();
  alignas(64) uint8_t buffer[2][kMaxGroups * 512];
  alignas(64) float tile[kTileRows][kLanes], up[kTileRows][kLanes];
  const bool gate = args.epilogue == Epilogue::kSiluGate;
  for (int32_t block = begin; block < end; block += gate ? 2 : 1) {
    const TileWeights w = open_block(args, block, buffer[0]);
    const TileWeights w_up = gate ? open_block(args, block + 1, buffer[1]) : w;
    for (int32_t row = 0; row < args.rows; row += kTileRows) {
      const int rows = args.rows - row < kTileRows ? args.rows - row : kTileRows;
      tile_block(args, w, row, tile);
      if (gate) {
        tile_block(args, w_up, row, up);
        finish_gate(args, block, row, rows, tile, up);
      } else {
        finish_block(args, block, row, rows, tile);
      }
    }
  }
  tile_release();
}

// Rows up to the next multiple of 16 are computed and thrown away: activation buffers are padded to that.
void linear(const LinearArgs& args, int32_t begin, int32_t end) {
  const bool bf16 = args.weight.kind == WeightKind::kBf16;
  if (args.rows < (bf16 ? kTileRowsBf16 : kTileRowsInt)) return linear_generic(args, begin, end);
  if (bf16) return linear_bf16(args, begin, end);
  if (args.weight.k / kGroup > kMaxGroups) return linear_generic(args, begin, end);
  linear_int(args, begin, end);
}

#include "isa/amx/attention.inl"

// One product as an instruction computes it.
void tile_product(const TileProduct& product) {
  TileConfig config;
  config.palette = product.palette;
  config.set(0, product.c.rows, product.c.row_bytes);
  config.set(1, product.a.rows, product.a.row_bytes);
  config.set(2, product.b.rows, product.b.row_bytes);
  tile_configure(config);
  tile_load<0>(product.c.data, product.c.row_bytes);
  tile_load<1>(product.a.data, product.a.row_bytes);
  tile_load<2>(product.b.data, product.b.row_bytes);
  switch (product.kind) {
    case TileProductKind::kSignedSigned: tile_dpbssd<0, 1, 2>(); break;
    case TileProductKind::kSignedUnsigned: tile_dpbsud<0, 1, 2>(); break;
    case TileProductKind::kUnsignedSigned: tile_dpbusd<0, 1, 2>(); break;
    case TileProductKind::kUnsignedUnsigned: tile_dpbuud<0, 1, 2>(); break;
    case TileProductKind::kBf16: tile_dpbf16ps<0, 1, 2>(); break;
  }
  tile_store<0>(product.out, product.c.row_bytes);
  tile_release();
}

#ifdef INTERLINGUA_SOFTWARE_TILES
constexpr const char* kName = "amx-emulated";
#else
constexpr const char* kName = "amx";
#endif
constexpr KernelTable kTable{kName, linear, prepare, prepare_tile, attention, attention_merge, rope, store_kv, vocab_stats, exp_scaled, tile_product,
                             {32, 64, 128}};  // by the tile kernels' counts

}  // namespace

#ifdef INTERLINGUA_SOFTWARE_TILES
const KernelTable* amx_emulated_kernels() { return &kTable; }
#else
const KernelTable* amx_kernels() { return &kTable; }
#endif

}  // namespace interlingua
