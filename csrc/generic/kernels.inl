// Kernels over a 16-lane vector type, compiled once per ISA. The including file defines, in an anonymous namespace:
//   F (16 floats), I (16 int32), W (64 bytes), Word (4 bytes in every lane) and the operations used below; how it sums the
//   products of a group (sums.inl); what fits into its registers: kRowTile (rows of a bf16 product), kIntRowTile,
//   kTwoTermRowTile and kIntBlocks (rows, rows of two terms and 16-blocks of integer products), kWideQueries. Order of float operations is fixed here and
//   nowhere else: this is what makes all tiers agree bit for bit.
//
// `linear` and `attention` are the ISA file's own: linear_generic and attention_generic, or what gives the same bits.

// --- exp ---------------------------------------------------------------------------------------------------------------
constexpr float kLog2E = 1.44269504088896341f;

// exp(x) for x <= 88: Cody-Waite reduction and a degree-6 polynomial; 0 below -87. Relative error under 2e-7.
inline F exp_lanes(F x) {
  const F clamped = fmax(fmin(x, splat(88.0f)), splat(-87.0f));
  const F n = round_nearest(mul(clamped, splat(kLog2E)));
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

// 2^x for x <= 0: minimax polynomial of degree 5 on [-1/2, 1/2]; exactly 1 at 0 and 0 below -127. Relative error under 2e-7.
inline F exp2_lanes(F x) {
  const F clamped = fmax(x, splat(-127.0f));
  const F n = round_nearest(clamped), r = sub(clamped, n);
  F p = splat(1.32647272e-3f);
  p = fma(p, r, splat(9.67151264e-3f));
  p = fma(p, r, splat(5.550733743e-2f));
  p = fma(p, r, splat(2.402224209e-1f));
  p = fma(p, r, splat(6.931469776e-1f));
  p = fma(p, r, splat(1.0f));
  return raise_exponent(p, n);
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

// Weights asked for ahead of their use, line by line, beside the products: `quants` and `scales` of one 16-block, the others
// of the pass lie a block apart. A single pass over the rows, of one block, asks for what comes kNear groups later; several
// passes share out the next blocks, which the units would else wait for in the first of them.
struct WeightsAhead {
  static constexpr int32_t kNear = 8, kMostPasses = 8;
  const uint8_t *quants, *scales;
  int32_t quant_step, scale_step;  // bytes from one to the next

  // `block_bytes`, `scale_bytes`: of a 16-block; `groups`: of inputs; pass `pass` of `passes`, whose rows take `blocks` blocks
  // before they go on to the next ones.
  WeightsAhead(const uint8_t* q, const uint8_t* s, int64_t block_bytes, int64_t scale_bytes, int32_t groups, int blocks,
               int pass, int passes)
      : quants(q), scales(s) {
    if (passes == 1) {
      const int32_t near = kNear < groups ? kNear : groups;
      quants += block_bytes / groups * near;
      scales += scale_bytes / groups * near;
      quant_step = 64;
      scale_step = int32_t(scale_bytes / groups);
      return;
    }
    const int sharing = passes < kMostPasses ? passes : kMostPasses;
    const int part = pass < sharing ? pass : sharing - 1;
    quants += blocks * block_bytes + block_bytes * part / sharing;
    scales += blocks * scale_bytes + scale_bytes * part / sharing;
    quant_step = pass < sharing ? (64 + sharing - 1) / sharing : 0;
    scale_step = pass < sharing ? (int32_t(scale_bytes / groups) + sharing - 1) / sharing : 0;
  }
  template <int B>
  void next_quants(int64_t block_bytes) {
    for (int b = 0; b < B; b++) prefetch(quants + b * block_bytes);
    quants += quant_step;
  }
  template <int B>
  void next_scales(int64_t scale_bytes) {
    for (int b = 0; b < B; b++) prefetch(scales + b * scale_bytes);
    scales += scale_step;
  }
};

// A gate and its up block are multiplied one after the other where they are not together.
template <int B>
inline int blocks_at_once(const LinearArgs& args) {
  return args.epilogue == Epilogue::kSiluGate ? 2 : B;
}

// Integer layers multiply R rows with B 16-blocks side by side, into tile[b][r][16]: four bytes of a row's inputs are
// read once for all blocks, and B * R chains of sums hide the latency of the products.
template <int R, int B, bool kTwoTerms>
inline void linear_blocks_int4(const LinearArgs& args, int32_t block, int32_t row, int pass, int passes,
                               float (*tile)[R][kLanes]) {
  const int32_t groups = args.weight.k / kGroup;
  const int64_t next_block = int64_t(groups) * 256, next_scales = int64_t(groups) * 64;
  const uint8_t* q = args.weight.quants + block * next_block;
  const uint8_t* s = args.weight.scales + block * next_scales;
  const int64_t at = Activations::at(row, 0, groups);
  const int8_t* high = args.in.high + at * kGroup;
  const int8_t* low = kTwoTerms ? args.in.low + at * kGroup : nullptr;
  const float* scale = args.in.scale + at;
  const float* sum = args.in.sum + at;
  WeightsAhead ahead(q, s, next_block, next_scales, groups, blocks_at_once<B>(args), pass, passes);
  F acc[B][R];
  for (int b = 0; b < B; b++)
    for (int r = 0; r < R; r++) acc[b][r] = splat(0.0f);
  for (int32_t g = 0; g < groups; g++) {
    const GroupInputs<R, kTwoTerms, 4> inputs{high, low};
    GroupSum<kTwoTerms, 4> sums[B][R];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
      ahead.next_quants<B>(next_block);
      W lo[B], hi[B];
      for (int b = 0; b < B; b++) {
        const W w = load_bytes(q + b * next_block + 64 * v);
        lo[b] = low_nibbles(w);
        hi[b] = high_nibbles(w);
      }
      for (int r = 0; r < R; r++) {
        const auto word = inputs.template word<B>(r, 4 * v);
        for (int b = 0; b < B; b++) sums[b][r].take(lo[b], word);
      }
      for (int r = 0; r < R; r++) {
        const auto word = inputs.template word<B>(r, 16 + 4 * v);
        for (int b = 0; b < B; b++) sums[b][r].take(hi[b], word);
      }
    }
    ahead.next_scales<B>(next_scales);
    F d[B], m[B];
    for (int b = 0; b < B; b++) {
      const uint16_t* half = reinterpret_cast<const uint16_t*>(s + b * next_scales);
      d[b] = load_half(half);
      m[b] = load_half(half + kLanes);
    }
    for (int r = 0; r < R; r++)
      for (int b = 0; b < B; b++)
        acc[b][r] = int4_group(acc[b][r], sums[b][r].total(), d[b], m[b], scale[r], sum[r]);
    q += 256;
    s += 64;
    high += kTileRows * kGroup;
    if (kTwoTerms) low += kTileRows * kGroup;
    scale += kTileRows;
    sum += kTileRows;
  }
  for (int b = 0; b < B; b++)
    for (int r = 0; r < R; r++) store(tile[b][r], acc[b][r]);
}

template <int R, int B, bool kTwoTerms>
inline void linear_blocks_int8(const LinearArgs& args, int32_t block, int32_t row, int pass, int passes,
                               float (*tile)[R][kLanes]) {
  const int32_t groups = args.weight.k / kGroup;
  const int64_t next_block = int64_t(groups) * 512, next_scales = int64_t(groups) * 32;
  const uint8_t* q = args.weight.quants + block * next_block;
  const uint8_t* s = args.weight.scales + block * next_scales;
  const int64_t at = Activations::at(row, 0, groups);
  const int8_t* high = args.in.high + at * kGroup;
  const int8_t* low = kTwoTerms ? args.in.low + at * kGroup : nullptr;
  const float* scale = args.in.scale + at;
  const int32_t* int_sum = args.in.int_sum + at;
  WeightsAhead ahead(q, s, next_block, next_scales, groups, blocks_at_once<B>(args), pass, passes);
  F acc[B][R];
  for (int b = 0; b < B; b++)
    for (int r = 0; r < R; r++) acc[b][r] = splat(0.0f);
  for (int32_t g = 0; g < groups; g++) {
    const GroupInputs<R, kTwoTerms, 8> inputs{high, low};
    GroupSum<kTwoTerms, 8> sums[B][R];
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) {
      ahead.next_quants<B>(next_block);
      W w[B];
      for (int b = 0; b < B; b++) w[b] = load_bytes(q + b * next_block + 64 * v);
      for (int r = 0; r < R; r++) {
        const auto word = inputs.template word<B>(r, 4 * v);
        for (int b = 0; b < B; b++) sums[b][r].take(w[b], word);
      }
    }
    ahead.next_scales<B>(next_scales);
    F d[B];
    for (int b = 0; b < B; b++) d[b] = load_half(reinterpret_cast<const uint16_t*>(s + b * next_scales));
    for (int r = 0; r < R; r++)
      for (int b = 0; b < B; b++) {
        const I dot = int_sub(sums[b][r].total(), int_splat(128 * int_sum[r]));  // weights are stored plus 128
        acc[b][r] = int8_group(acc[b][r], dot, d[b], scale[r]);
      }
    q += 512;
    s += 32;
    high += kTileRows * kGroup;
    if (kTwoTerms) low += kTileRows * kGroup;
    scale += kTileRows;
    int_sum += kTileRows;
  }
  for (int b = 0; b < B; b++)
    for (int r = 0; r < R; r++) store(tile[b][r], acc[b][r]);
}

template <int R, int B>
inline void linear_blocks(const LinearArgs& args, int32_t block, int32_t row, int pass, int passes,
                          float (*tile)[R][kLanes]) {
  const bool two = args.kind == ActivationKind::kInt16;
  switch (args.weight.kind) {
    case WeightKind::kInt4:
      two ? linear_blocks_int4<R, B, true>(args, block, row, pass, passes, tile)
          : linear_blocks_int4<R, B, false>(args, block, row, pass, passes, tile);
      break;
    case WeightKind::kInt8:
      two ? linear_blocks_int8<R, B, true>(args, block, row, pass, passes, tile)
          : linear_blocks_int8<R, B, false>(args, block, row, pass, passes, tile);
      break;
    case WeightKind::kBf16:
      for (int b = 0; b < B; b++) linear_block_bf16<R>(args, block + b, row, tile[b]);
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

// Asks for the lines that a pass will write at its end, in time: it would else wait for each of them.
template <int R, int B>
inline void claim_outputs(const LinearArgs& args, int32_t block, int32_t row) {
  const bool gate = args.epilogue == Epilogue::kSiluGate;
  const float* out = args.out + row * args.out_stride + int64_t(gate ? block / 2 : block) * kLanes;
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++)
      if (!gate || b == 0) __builtin_prefetch(out + r * args.out_stride + b * kLanes, 1);
}

// `rows` rows of a tile and B 16-blocks (of gates and ups a pair), at most R rows at a time.
template <int R, int B>
inline void linear_rows(const LinearArgs& args, int32_t block, int32_t row, int rows, int pass, int passes) {
  if constexpr (R > 1)
    if (rows < R) return linear_rows<R - 1, B>(args, block, row, rows, pass, passes);
  claim_outputs<R, B>(args, block, row);
  if (args.epilogue == Epilogue::kSiluGate) {
    alignas(64) float pair[2][R][kLanes];
    for (int b = 0; b < 2; b += B) linear_blocks<R, B>(args, block + b, row, pass, passes, pair + b);
    finish_gate(args, block, row, R, pair[0], pair[1]);
  } else {
    alignas(64) float tile[B][R][kLanes];
    linear_blocks<R, B>(args, block, row, pass, passes, tile);
    for (int b = 0; b < B; b++) finish_block(args, block + b, row, R, tile[b]);
  }
}

// All rows, in passes of as equal size as can be: the last one would else be too short to hide latencies.
template <int R, int B>
inline void linear_passes(const LinearArgs& args, int32_t block) {
  const auto passes_over = [](int32_t rows) { return (rows + R - 1) / R; };
  const int32_t whole = args.rows / kTileRows, rest = args.rows % kTileRows;
  const int passes = whole * passes_over(kTileRows) + passes_over(rest);
  for (int32_t row = 0, pass = 0; row < args.rows;) {
    int32_t left = args.rows - row < kTileRows ? args.rows - row : kTileRows;
    for (int in_tile = passes_over(left); in_tile > 0; in_tile--, pass++) {
      const int rows = (left + in_tile - 1) / in_tile;
      linear_rows<R, B>(args, block, row, rows, pass, passes);
      row += rows;
      left -= rows;
    }
  }
}

template <int R, int B>
inline void linear_generic(const LinearArgs& args, int32_t begin, int32_t end) {
  static_assert(B <= 2, "a pair of gate and up is computed at once");
  const bool gate = args.epilogue == Epilogue::kSiluGate;
  int32_t block = begin;
  if constexpr (B > 1)
    for (; block + B <= end; block += B) linear_passes<R, B>(args, block);
  for (; block < end; block += gate ? 2 : 1) linear_passes<R, 1>(args, block);
}

inline void linear_generic(const LinearArgs& args, int32_t begin, int32_t end) {
  // Few rows are bound by memory, which gives most to one stream.
  if (args.weight.kind == WeightKind::kBf16 || args.rows <= kRowTile) return linear_generic<kRowTile, 1>(args, begin, end);
  if (args.kind == ActivationKind::kInt16) return linear_generic<kTwoTermRowTile, kIntBlocks>(args, begin, end);
  linear_generic<kIntRowTile, kIntBlocks>(args, begin, end);
}

// --- activations -----------------------------------------------------------------------------------------------------------
// The bits of the nearest bf16, as a float32.
inline uint32_t round_bf16(float x) {
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1);
  return ((u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : rounded) & 0xffff0000u;  // NaN stays NaN
}

// A group's largest magnitude, of which less becomes zeros. Magnitudes are compared as integers, among which NaN is above all
// others in any order: the group's scale is NaN then, and the row ends with logits that are not finite, whatever the rest of
// the batch and the tier.
constexpr float kLeastPeak = 1e-30f;

template <bool kTwoTerms>
constexpr float kIntRange = kTwoTerms ? 32512.0f : 127.0f;

// Half a group's integers, in +-kIntRange, rounded to nearest even, as one int8 term or two.
template <bool kTwoTerms>
inline void store_terms(const Activations& out, int64_t place, I q) {
  if (kTwoTerms) {  // value = 256 * high + low, low in [-128, 127]
    const I high = int_shift_right_8(int_add(q, int_splat(128)));
    int_store_bytes(out.high + place, high);
    int_store_bytes(out.low + place, int_sub(q, int_shift_left_8(high)));
  } else {
    int_store_bytes(out.high + place, q);
  }
}

template <bool kTwoTerms>
inline void quantise_group(const float* x, const Activations& out, int64_t at) {
  constexpr float range = kIntRange<kTwoTerms>;
  const F a = load(x), b = load(x + kLanes);
  const int32_t bits = int_max_lanes(int_max(magnitude_bits(a), magnitude_bits(b)));
  float peak;
  __builtin_memcpy(&peak, &bits, 4);
  const bool zero = peak < kLeastPeak;
  const F inverse = splat(zero ? 0.0f : range / peak);
  const I qa = to_int(mul(a, inverse)), qb = to_int(mul(b, inverse));
  const float scale = zero ? 0.0f : peak / range;
  const int32_t total = int_sum_lanes(int_add(qa, qb));
  out.scale[at] = scale;
  out.int_sum[at] = total;
  out.sum[at] = float(total) * scale;
  store_terms<kTwoTerms>(out, at * kGroup, qa);
  store_terms<kTwoTerms>(out, at * kGroup + kLanes, qb);
}

// RMSNorm: x / sqrt(mean(x^2) + eps) * weight; this is what comes before the weight.
inline float inverse_norm(const float* x, int32_t k, float eps) {
  F squares = splat(0.0f);
  for (int32_t i = 0; i < k; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
  return 1.0f / square_root(sum_lanes(squares) / float(k) + eps);
}

void prepare(const float* x, int32_t k, const float* norm, float eps, const Activations& out, int32_t row,
             bool want_int8, bool want_int16, bool want_bf16, float* scratch) {
  if (norm) {
    const F inverse = splat(inverse_norm(x, k, eps));
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

// `quantise_group` for the 16 rows of a tile, from `row` on: what a group has one of, a lane has for each row.
template <bool kTwoTerms>
inline void quantise_rows(const float* x, int64_t stride, int32_t k, const float* norm, float eps, const Activations& out,
                          int32_t row) {
  static_assert(kTileRows == kLanes, "a lane for each row");
  const int32_t groups = k / kGroup;
  float inverse[kTileRows];
  for (int r = 0; norm && r < kTileRows; r++) inverse[r] = inverse_norm(x + r * stride, k, eps);
  for (int32_t g = 0; g < groups; g++, x += kGroup) {
    alignas(64) float values[kTileRows][2][kLanes];
    I peaks[kTileRows];
    for (int r = 0; r < kTileRows; r++) {
      F half[2];
      for (int h = 0; h < 2; h++) {
        half[h] = load(x + r * stride + h * kLanes);
        if (norm) half[h] = mul(mul(half[h], splat(inverse[r])), load(norm + g * kGroup + h * kLanes));
        store(values[r][h], half[h]);
      }
      peaks[r] = int_max(magnitude_bits(half[0]), magnitude_bits(half[1]));
    }
    const F peak = as_float(max_of_each(peaks)), range = splat(kIntRange<kTwoTerms>);
    const F scale = zero_if_less(peak, kLeastPeak, div(peak, range));
    alignas(64) float factors[kTileRows];
    store(factors, zero_if_less(peak, kLeastPeak, div(range, peak)));
    const int64_t at = Activations::at(row, g, groups);
    I sums[kTileRows];
    for (int r = 0; r < kTileRows; r++) {
      I q[2];
      for (int h = 0; h < 2; h++) {
        q[h] = to_int(mul(load(values[r][h]), splat(factors[r])));
        store_terms<kTwoTerms>(out, (at + r) * kGroup + h * kLanes, q[h]);
      }
      sums[r] = int_add(q[0], q[1]);
    }
    const I total = sum_of_each(sums);
    store(out.scale + at, scale);
    int_store(out.int_sum + at, total);
    store(out.sum + at, mul(to_float(total), scale));
  }
}

void prepare_tile(const float* x, int64_t stride, int32_t k, const float* norm, float eps, const Activations& out, int32_t row,
                  bool two_terms) {
  two_terms ? quantise_rows<true>(x, stride, k, norm, eps, out, row) : quantise_rows<false>(x, stride, k, norm, eps, out, row);
}

#include "generic/attention.inl"

void rope(float* x, int32_t heads, int32_t head_dim, int32_t rotary, const float* cos, const float* sin) {
  const int32_t half = rotary / 2;
  for (int32_t h = 0; h < heads; h++, x += head_dim) {
    int32_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
      const F a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
      store(x + i, sub(mul(a, c), mul(b, s)));
      store(x + half + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; i++) {
      const float a = x[i], b = x[i + half];
      x[i] = a * cos[i] - b * sin[i];
      x[i + half] = b * cos[i] + a * sin[i];
    }
  }
}

// --- vocabulary --------------------------------------------------------------------------------------------------------------
// n is a multiple of 16: rows of logits are padded with kMasked.
VocabStats vocab_stats(const float* x, int32_t n) {
  constexpr int kChains = 4;            // hide the latency of what each adds up; their number is part of the numerics
  constexpr int32_t kChunk = 1024;      // of which the largest is known; the id is looked for in one alone
  VocabStats stats{-__builtin_huge_valf(), 0, 0.0f, false};
  I magnitude[kChains];
  for (I& of_chain : magnitude) of_chain = int_splat(0);
  int32_t at = 0;
  for (int32_t first = 0; first < n; first += kChunk) {
    const int32_t end = n - first < kChunk ? n : first + kChunk;
    F best[kChains];
    for (F& of_chain : best) of_chain = load(x + first);
    int32_t i = first;
    for (; i + kChains * kLanes <= end; i += kChains * kLanes)
      for (int c = 0; c < kChains; c++) {
        const F v = load(x + i + c * kLanes);
        best[c] = fmax(best[c], v);
        magnitude[c] = int_max(magnitude[c], magnitude_bits(v));
      }
    for (; i < end; i += kLanes) {
      best[0] = fmax(best[0], load(x + i));
      magnitude[0] = int_max(magnitude[0], magnitude_bits(load(x + i)));
    }
    const float largest = max_lanes(fmax(fmax(best[0], best[1]), fmax(best[2], best[3])));
    if (largest > stats.max) {
      stats.max = largest;
      at = first;
    }
  }
  const float limit = kLogitLimit;
  int32_t bits;
  __builtin_memcpy(&bits, &limit, sizeof bits);
  stats.usable = int_max_lanes(int_max(int_max(magnitude[0], magnitude[1]), int_max(magnitude[2], magnitude[3]))) < bits;
  if (!stats.usable) return stats;
  while (x[at] != stats.max) at++;
  stats.argmax = at;
  const F max = splat(stats.max), log2_e = splat(kLog2E);
  F sums[kChains];
  for (F& of_chain : sums) of_chain = splat(0.0f);
  int32_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes)
    for (int c = 0; c < kChains; c++)
      sums[c] = add(sums[c], exp2_lanes(mul(sub(load(x + i + c * kLanes), max), log2_e)));
  for (; i < n; i += kLanes) sums[0] = add(sums[0], exp2_lanes(mul(sub(load(x + i), max), log2_e)));
  stats.exp_sum = sum_lanes(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  return stats;
}

void exp_scaled(const float* x, int32_t n, float max, float inv_temperature, float* out) {
  const F largest = splat(max), factor = splat(inv_temperature * kLog2E);
  for (int32_t i = 0; i < n; i += kLanes) store(out + i, exp2_lanes(mul(sub(load(x + i), largest), factor)));
}
