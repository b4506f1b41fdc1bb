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

constexpr int kRowTile = 8;
constexpr int kWideQueries = 6;  // up to so many queries take two blocks of lanes at once

#include "isa/avx512/vec.h"

#include "generic/kernels.inl"

#include "isa/amx/tiles.h"

// From how many rows on the tile unit is faster than vector products (measured: bench/kernels.py).
constexpr int32_t kTileRowsInt = 9, kTileRowsBf16 = 3;
constexpr int32_t kMaxGroups = 512;  // inputs up to 16,384 per layer go through the unpacked buffer at once

// Tiles: 0, 1 sums; 2, 3 inputs (16 rows of 32 bytes, or of 32 bf16); 4 weights (int8: 8 rows; bf16: 16 rows).
inline void configure(bool bf16) {
  TileConfig config;
  for (int t = 0; t < 2; t++) config.set(t, 16, 64);
  for (int t = 2; t < 4; t++) config.set(t, 16, bf16 ? 64 : 32);
  config.set(4, bf16 ? 16 : 8, 64);
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
  alignas(64) int32_t c[2][16][kLanes], e[2][16][kLanes];
  F acc[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r++) acc[r] = splat(0.0f);
  const auto multiply = [&](int32_t g) {
    tile_load<4>(b + int64_t(g) * 512, 64);
    tile_zero<0>();
    tile_load<2>(high + int64_t(g) * 512, kGroup);
    tile_dpbsud<0, 2, 4>();
    tile_store<0>(c[g & 1], 64);
    if (kTwoTerms) {
      tile_zero<1>();
      tile_load<3>(low + int64_t(g) * 512, kGroup);
      tile_dpbsud<1, 3, 4>();
      tile_store<1>(e[g & 1], 64);
    }
  };
  multiply(0);
  for (int32_t g = 0; g < groups; g++) {
    if (g + 1 < groups) multiply(g + 1);  // runs on the tile unit while the float steps of group g run here
    const uint16_t* half = reinterpret_cast<const uint16_t*>(s + int64_t(g) * (kInt4 ? 64 : 32));
    const F d = load_half(half);
    const F m = kInt4 ? load_half(half + kLanes) : d;
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) {
      I dot = _mm512_load_si512(c[g & 1][r]);
      if (kTwoTerms) dot = int_add(int_shift_left_8(dot), _mm512_load_si512(e[g & 1][r]));
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

inline void tile_block_bf16(const LinearArgs& args, const uint8_t* b, int64_t slice, int32_t row, float (*tile)[kLanes]) {
  const int32_t groups = (args.weight.k + kGroup - 1) / kGroup;  // half a group meets inputs that are zero
  const uint16_t* a = args.in.bf16 + slice + Activations::at(row, 0, groups) * kGroup;
  tile_zero<0>();
  for (int32_t g = 0; g < groups; g++) {
    tile_load<4>(b + int64_t(g) * 1024, 64);
    tile_load<2>(a + int64_t(g) * 512, 64);
    tile_dpbf16ps<0, 2, 4>();
  }
  tile_store<0>(tile, 64);
}

// A weight block ready for the tile unit: int4 is unpacked once for all rows.
struct TileWeights {
  const uint8_t* bytes;
  const uint8_t* scales;
  int64_t slice;  // bf16 alone: where its inputs begin
};

inline TileWeights open_block(const LinearArgs& args, int32_t block, uint8_t* buffer) {
  const Weight& w = args.weight;
  const int64_t groups = w.k / kGroup;
  switch (w.kind) {
    case WeightKind::kInt4:
      unpack_int4(w.quants + block * groups * 256, int32_t(groups), buffer);
      return {buffer, w.scales + block * groups * 64, 0};
    case WeightKind::kInt8:
      return {w.quants + block * groups * 512, w.scales + block * groups * 32, 0};
    default:
      return {w.quants + int64_t(block) * w.k * kLanes * 2, nullptr, args.slice(block)};
  }
}

inline void tile_block(const LinearArgs& args, TileWeights w, int32_t row, float (*tile)[kLanes]) {
  const bool two = args.kind == ActivationKind::kInt16;
  if (args.weight.kind == WeightKind::kBf16)
    tile_block_bf16(args, w.bytes, w.slice, row, tile);
  else if (args.weight.kind == WeightKind::kInt4)
    two ? tile_block_int<true, true>(args, w.bytes, w.scales, row, tile)
        : tile_block_int<false, true>(args, w.bytes, w.scales, row, tile);
  else
    two ? tile_block_int<true, false>(args, w.bytes, w.scales, row, tile)
        : tile_block_int<false, false>(args, w.bytes, w.scales, row, tile);
}

// Rows up to the next multiple of 16 are computed and thrown away: activation buffers are padded to that.
void linear(const LinearArgs& args, int32_t begin, int32_t end) {
  const bool bf16 = args.weight.kind == WeightKind::kBf16;
  if (args.rows < (bf16 ? kTileRowsBf16 : kTileRowsInt) || args.weight.k / kGroup > kMaxGroups)
    return linear_generic(args, begin, end);
  configure(bf16);
  alignas(64) uint8_t buffer[2][kMaxGroups * 512];
  alignas(64) float tile[16][kLanes], up[16][kLanes];
  const bool gate = args.epilogue == Epilogue::kSiluGate;
  for (int32_t block = begin; block < end; block += gate ? 2 : 1) {
    const TileWeights w = open_block(args, block, buffer[0]);
    const TileWeights w_up = gate ? open_block(args, block + 1, buffer[1]) : w;
    for (int32_t row = 0; row < args.rows; row += 16) {
      const int rows = args.rows - row < 16 ? args.rows - row : 16;
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
constexpr KernelTable kTable{kName, linear, prepare, attention, rope, store_kv, vocab_stats, exp_scaled, tile_product};

}  // namespace

#ifdef INTERLINGUA_SOFTWARE_TILES
const KernelTable* amx_emulated_kernels() { return &kTable; }
#else
const KernelTable* amx_kernels() { return &kTable; }
#endif

}  // namespace interlingua
