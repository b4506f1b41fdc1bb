// Kernels over a 16-lane vector type, compiled once per ISA. The including file defines, in an anonymous namespace:
//   F (16 floats), I (16 int32), W (64 bytes) and the operations used below; kRowTile, kWideQueries (what fits into its
//   registers). Order of float operations is fixed here and
//   nowhere else: this is what makes all tiers agree bit for bit.
//
// `linear` and `attention` are the ISA file's own: linear_generic and attention_generic, or what gives the same bits.

// --- exp ---------------------------------------------------------------------------------------------------------------
// exp(x) for x <= 88: Cody-Waite reduction and a degree-6 polynomial; 0 below -87. Relative error under 2e-7.
inline F exp_lanes(F x) {
  const F clamped = fmax(fmin(x, splat(88.0f)), splat(-87.0f));
  const F n = round_nearest(mul(clamped, splat(1.44269504088896341f)));
  F r = fma(n, splat(-0.693359375f), clamped);
  r = fma(n, splat(2.12194440e-4f), r);
  F p = splat(1.3981999507e-3f);
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, mul(r, r), r);
  p = add(p, splat(1.0f));
  return zero_below(x, -87.0f, mul(p, power_of_two(n)));
}

inline F silu(F x) { return div(x, add(splat(1.0f), exp_lanes(sub(splat(0.0f), x)))); }

// --- bf16 products -------------------------------------------------------------------------------------------------------
// The order of AMX's TDPBF16PS: over 32 inputs one chain of fused multiply-adds over the even inputs and one over the
// odd, both from zero; then acc += even + odd. `b` holds pairs [16][.. stride ..][16 lanes][2].
template <int R, int kPairs = kGroup / 2>
inline void pair_chunk(F (&acc)[R], const uint16_t* b, int64_t pair_stride, const float* a, int64_t a_stride) {
  F even[R], odd[R];
  for (int r = 0; r < R; r++) even[r] = odd[r] = splat(0.0f);
  for (int p = 0; p < kPairs; p++) {
    const W w = load_bytes(reinterpret_cast<const uint8_t*>(b + p * pair_stride));
    const F be = even_bf16(w), bo = odd_bf16(w);
    for (int r = 0; r < R; r++) {
      even[r] = fma(be, splat(a[r * a_stride + 2 * p]), even[r]);
      odd[r] = fma(bo, splat(a[r * a_stride + 2 * p + 1]), odd[r]);
    }
  }
  for (int r = 0; r < R; r++) acc[r] = add(acc[r], add(even[r], odd[r]));
}

// --- linear --------------------------------------------------------------------------------------------------------------
// y of one 16-block for R rows, into tile[r][16].
template <int R>
inline void linear_block_bf16(const LinearArgs& args, int32_t block, int32_t row, float (*tile)[kLanes]) {
  const int32_t whole = args.weight.k / kGroup, groups = (args.weight.k + kGroup - 1) / kGroup;
  const uint16_t* b = reinterpret_cast<const uint16_t*>(args.weight.quants) + int64_t(block) * args.weight.k * kLanes;
  const float* a = args.in.rounded + args.slice(block) + Activations::at(row, 0, groups) * kGroup;
  F acc[R];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int32_t g = 0; g < whole; g++)
    pair_chunk<R>(acc, b + int64_t(g) * 512, 2 * kLanes, a + int64_t(g) * kTileRows * kGroup, kGroup);
  if (whole < groups)  // half a group
    pair_chunk<R, kGroup / 4>(acc, b + int64_t(whole) * 512, 2 * kLanes, a + int64_t(whole) * kTileRows * kGroup, kGroup);
  for (int r = 0; r < R; r++) store(tile[r], acc[r]);
}

// The float steps of one group, after the exact integer sum: the same for int4 and int8, VNNI and AMX.
inline F int4_group(F acc, I dot, F d, F m, float scale, float sum) {
  acc = fma(to_float(dot), mul(d, splat(scale)), acc);
  return fma(m, splat(sum), acc);
}
inline F int8_group(F acc, I dot, F d, float scale) { return fma(to_float(dot), mul(d, splat(scale)), acc); }

template <int R, bool kTwoTerms>
inline void linear_block_int4(const LinearArgs& args, int32_t block, int32_t row, float (*tile)[kLanes]) {
  const int32_t groups = args.weight.k / kGroup;
  const uint8_t* q = args.weight.quants + int64_t(block) * groups * 256;
  const uint8_t* s = args.weight.scales + int64_t(block) * groups * 64;
  const int64_t at = Activations::at(row, 0, groups);
  const int8_t* high = args.in.high + at * kGroup;
  const int8_t* low = kTwoTerms ? args.in.low + at * kGroup : nullptr;
  const float* scale = args.in.scale + at;
  const float* sum = args.in.sum + at;
  F acc[R];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int32_t g = 0; g < groups; g++, q += 256, s += 64) {
    prefetch(q + 2048);
    prefetch(q + 2048 + 64);
    prefetch(q + 2048 + 128);
    prefetch(q + 2048 + 192);
    I c[R], e[R];
    for (int r = 0; r < R; r++) c[r] = e[r] = int_splat(0);
    for (int v = 0; v < 4; v++) {
      const W w = load_bytes(q + 64 * v);
      const W lo = low_nibbles(w), hi = high_nibbles(w);
      for (int r = 0; r < R; r++) {
        const int8_t* h = high + (int64_t(g) * kTileRows + r) * kGroup;
        c[r] = dot_u8s8(c[r], lo, h + 4 * v);
        c[r] = dot_u8s8(c[r], hi, h + 16 + 4 * v);
        if (kTwoTerms) {
          const int8_t* l = low + (int64_t(g) * kTileRows + r) * kGroup;
          e[r] = dot_u8s8(e[r], lo, l + 4 * v);
          e[r] = dot_u8s8(e[r], hi, l + 16 + 4 * v);
        }
      }
    }
    const F d = load_half(reinterpret_cast<const uint16_t*>(s));
    const F m = load_half(reinterpret_cast<const uint16_t*>(s) + kLanes);
    for (int r = 0; r < R; r++) {
      const I dot = kTwoTerms ? int_add(int_shift_left_8(c[r]), e[r]) : c[r];
      acc[r] = int4_group(acc[r], dot, d, m, scale[int64_t(g) * kTileRows + r], sum[int64_t(g) * kTileRows + r]);
    }
  }
  for (int r = 0; r < R; r++) store(tile[r], acc[r]);
}

template <int R, bool kTwoTerms>
inline void linear_block_int8(const LinearArgs& args, int32_t block, int32_t row, float (*tile)[kLanes]) {
  const int32_t groups = args.weight.k / kGroup;
  const uint8_t* q = args.weight.quants + int64_t(block) * groups * 512;
  const uint8_t* s = args.weight.scales + int64_t(block) * groups * 32;
  const int64_t at = Activations::at(row, 0, groups);
  const int8_t* high = args.in.high + at * kGroup;
  const int8_t* low = kTwoTerms ? args.in.low + at * kGroup : nullptr;
  const float* scale = args.in.scale + at;
  const int32_t* int_sum = args.in.int_sum + at;
  F acc[R];
  for (int r = 0; r < R; r++) acc[r] = splat(0.0f);
  for (int32_t g = 0; g < groups; g++, q += 512, s += 32) {
    I c[R], e[R];
    for (int r = 0; r < R; r++) c[r] = e[r] = int_splat(0);
    for (int v = 0; v < 8; v++) {
      prefetch(q + 3072 + 64 * v);
      const W w = load_bytes(q + 64 * v);
      for (int r = 0; r < R; r++) {
        c[r] = dot_u8s8(c[r], w, high + (int64_t(g) * kTileRows + r) * kGroup + 4 * v);
        if (kTwoTerms) e[r] = dot_u8s8(e[r], w, low + (int64_t(g) * kTileRows + r) * kGroup + 4 * v);
      }
    }
    const F d = load_half(reinterpret_cast<const uint16_t*>(s));
    for (int r = 0; r < R; r++) {
      I dot = kTwoTerms ? int_add(int_shift_left_8(c[r]), e[r]) : c[r];
      dot = int_sub(dot, int_splat(128 * int_sum[int64_t(g) * kTileRows + r]));  // weights are stored plus 128
      acc[r] = int8_group(acc[r], dot, d, scale[int64_t(g) * kTileRows + r]);
    }
  }
  for (int r = 0; r < R; r++) store(tile[r], acc[r]);
}

template <int R>
inline void linear_block(const LinearArgs& args, int32_t block, int32_t row, float (*tile)[kLanes]) {
  switch (args.weight.kind) {
    case WeightKind::kInt4:
      if (args.kind == ActivationKind::kInt16)
        linear_block_int4<R, true>(args, block, row, tile);
      else
        linear_block_int4<R, false>(args, block, row, tile);
      break;
    case WeightKind::kInt8:
      if (args.kind == ActivationKind::kInt16)
        linear_block_int8<R, true>(args, block, row, tile);
      else
        linear_block_int8<R, false>(args, block, row, tile);
      break;
    case WeightKind::kBf16:
      linear_block_bf16<R>(args, block, row, tile);
      break;
  }
}

// An adapter's part of one 16-block of row `row`.
inline F add_delta(const LinearArgs& args, int32_t block, int32_t row, F y) {
  if (!args.delta || args.place[row] < 0) return y;
  return add(y, load(args.delta + args.place[row] * args.delta_stride + int64_t(block) * kLanes));
}

// Writes finished sums of one 16-block (or of a gate and an up block) for `rows` rows from `row` on.
inline void finish_block(const LinearArgs& args, int32_t block, int32_t row, int rows, const float (*tile)[kLanes]) {
  for (int r = 0; r < rows; r++) {
    F y = load(tile[r]);
    if (args.bias) y = add(y, load(args.bias + int64_t(block) * kLanes));
    y = add_delta(args, block, row + r, y);
    float* out = args.out + (row + r) * args.out_stride + int64_t(block) * kLanes;
    store(out, args.epilogue == Epilogue::kAdd ? add(load(out), y) : y);
  }
}
inline void finish_gate(const LinearArgs& args, int32_t block, int32_t row, int rows, const float (*gate)[kLanes],
                        const float (*up)[kLanes]) {
  for (int r = 0; r < rows; r++) {
    F g = load(gate[r]), u = load(up[r]);
    if (args.bias) {
      g = add(g, load(args.bias + int64_t(block) * kLanes));
      u = add(u, load(args.bias + int64_t(block + 1) * kLanes));
    }
    g = add_delta(args, block, row + r, g);
    u = add_delta(args, block + 1, row + r, u);
    store(args.out + (row + r) * args.out_stride + int64_t(block / 2) * kLanes, mul(silu(g), u));
  }
}

template <int R>
inline void linear_rows(const LinearArgs& args, int32_t block, int32_t row) {
  alignas(64) float tile[R][kLanes];
  linear_block<R>(args, block, row, tile);
  if (args.epilogue == Epilogue::kSiluGate) {
    alignas(64) float up[R][kLanes];
    linear_block<R>(args, block + 1, row, up);
    finish_gate(args, block, row, R, tile, up);
  } else {
    finish_block(args, block, row, R, tile);
  }
}

inline void linear_generic(const LinearArgs& args, int32_t begin, int32_t end) {
  const int32_t step = args.epilogue == Epilogue::kSiluGate ? 2 : 1;
  for (int32_t block = begin; block < end; block += step) {
    int32_t row = 0;
    for (; row + kRowTile <= args.rows; row += kRowTile) linear_rows<kRowTile>(args, block, row);
    switch (args.rows - row) {
      case 7: linear_rows<4>(args, block, row); linear_rows<3>(args, block, row + 4); break;
      case 6: linear_rows<4>(args, block, row); linear_rows<2>(args, block, row + 4); break;
      case 5: linear_rows<4>(args, block, row); linear_rows<1>(args, block, row + 4); break;
      case 4: linear_rows<4>(args, block, row); break;
      case 3: linear_rows<3>(args, block, row); break;
      case 2: linear_rows<2>(args, block, row); break;
      case 1: linear_rows<1>(args, block, row); break;
      default: break;
    }
  }
}

// --- activations -----------------------------------------------------------------------------------------------------------
// The bits of the nearest bf16, as a float32.
inline uint32_t round_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1);
  return ((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : rounded) & 0xffff0000u;  // NaN stays NaN
}

// One group of 32: integers in +-`range`, rounded to nearest even, as one int8 term or (kTwoTerms) two.
template <bool kTwoTerms>
inline void quantise_group(const float* x, const Activations& out, int64_t at) {
  constexpr float range = kTwoTerms ? 32512.0f : 127.0f;
  const F a = load(x), b = load(x + kLanes);
  const float peak = max_lanes(fmax(absolute(a), absolute(b)));
  const bool zero = !(peak > 1e-30f);
  const F inverse = splat(zero ? 0.0f : range / peak);
  const I qa = to_int(mul(a, inverse)), qb = to_int(mul(b, inverse));
  const float scale = zero ? 0.0f : peak / range;
  const int32_t total = int_sum_lanes(int_add(qa, qb));
  out.scale[at] = scale;
  out.int_sum[at] = total;
  out.sum[at] = float(total) * scale;
  int8_t* high = out.high + at * kGroup;
  if (kTwoTerms) {  // value = 256 * high + low, low in [-128, 127]
    const I ha = int_shift_right_8(int_add(qa, int_splat(128))), hb = int_shift_right_8(int_add(qb, int_splat(128)));
    int8_t* low = out.low + at * kGroup;
    int_store_bytes(high, ha);
    int_store_bytes(high + kLanes, hb);
    int_store_bytes(low, int_sub(qa, int_shift_left_8(ha)));
    int_store_bytes(low + kLanes, int_sub(qb, int_shift_left_8(hb)));
  } else {
    int_store_bytes(high, qa);
    int_store_bytes(high + kLanes, qb);
  }
}

void prepare(const float* x, int32_t k, const float* norm, float eps, const Activations& out, int32_t row,
             bool want_int8, bool want_int16, bool want_bf16, float* scratch) {
  if (norm) {  // RMSNorm: x / sqrt(mean(x^2) + eps) * weight
    F squares = splat(0.0f);
    for (int32_t i = 0; i < k; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    const F inverse = splat(1.0f / square_root(sum_lanes(squares) / float(k) + eps));
    for (int32_t i = 0; i < k; i += kLanes) store(scratch + i, mul(mul(load(x + i), inverse), load(norm + i)));
    x = scratch;
  }
  const int32_t groups = k / kGroup;
  for (int32_t g = 0; g < groups; g++) {
    const int64_t at = Activations::at(row, g, groups);
    const float* values = x + g * kGroup;
    if (want_int8) quantise_group<false>(values, out, at);
    if (want_int16) quantise_group<true>(values, out, at);
    if (want_bf16) {
      uint32_t bits[kGroup];  // loops apart, so that compilers see vectors
      for (int i = 0; i < kGroup; i++) bits[i] = round_bf16(values[i]);
      for (int i = 0; i < kGroup; i++) out.bf16[at * kGroup + i] = uint16_t(bits[i] >> 16);
      __builtin_memcpy(out.rounded + at * kGroup, bits, sizeof bits);
    }
  }
}

#include "generic/attention.inl"

void rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary, const float* cos, const float* sin) {
  const int32_t half = rotary / 2;
  for (int32_t h = 0; h < heads; h++, x += head_dim) {
    for (int32_t i = 0; i < half; i++) {  // short and rarely a multiple of 16: plain code, the same in every tier
      const float a = x[i], b = x[i + half];
      x[i] = a * cos[i] - b * sin[i];
      x[i + half] = b * cos[i] + a * sin[i];
    }
  }
}

// --- vocabulary --------------------------------------------------------------------------------------------------------------
// n is a multiple of 16: rows of logits are padded with kMasked.
VocabStats vocab_stats(const float* x, int32_t n) {
  F best = splat(-3.0e38f);
  I where = int_splat(0);
  for (int32_t i = 0; i < n; i += kLanes) keep_greater(best, where, load(x + i), i);
  alignas(64) float values[kLanes];
  alignas(64) int32_t bases[kLanes];
  store(values, best);
  int_store(bases, where);
  VocabStats stats{values[0], bases[0], 0.0f};
  for (int i = 1; i < kLanes; i++) {
    const int32_t id = bases[i] + i;
    if (values[i] > stats.max || (values[i] == stats.max && id < stats.argmax)) {
      stats.max = values[i];
      stats.argmax = id;
    }
  }
  // Four chains hide the latency of the additions; their number is part of the numerics.
  const F max = splat(stats.max);
  F sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int32_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int c = 0; c < 4; c++) sums[c] = add(sums[c], exp_lanes(sub(load(x + i + c * kLanes), max)));
  for (; i < n; i += kLanes) sums[0] = add(sums[0], exp_lanes(sub(load(x + i), max)));
  stats.exp_sum = sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return stats;
}

void exp_scaled(const float* x, int32_t n, float max, float inv_temperature, float* out) {
  for (int32_t i = 0; i < n; i += kLanes)
    store(out + i, exp_lanes(mul(sub(load(x + i), splat(max)), splat(inv_temperature))));
}
