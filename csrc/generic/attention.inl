// Attention over paged keys and values, in each form that they are held in (KvKind). Included by kernels.inl.
//
// One numerics for decode, prefill chunks and recomputation: positions are cut into absolute blocks of 256; each block's
// (max, sum, out) is computed alone from zero and merged in ascending order.

constexpr int kMaxHeadDim = 256;
constexpr int kQueryTile = 6;
constexpr float kMasked = -3e38f;

// The KV blocks of one attention block that a tile of queries looks at, for one KV head.
struct KvSpan {
  const AttentionArgs& args;
  const int32_t* table;  // of the attention block's first KV block
  int32_t head_offset;   // bytes to the head's part
  int32_t from, to;      // KV blocks

  const uint8_t* head(int32_t block) const { return args.kv + table[block] * args.block_stride + head_offset; }
};

// A head's part of a KV block lies on a page or two, where the hardware's own prefetching ends.
inline void prefetch_range(const uint8_t* bytes, int32_t count) {
  for (int32_t i = 0; i < count; i += 64) prefetch_to_l2(bytes + i);
}

// The next block's keys and this one's values, asked for line by line while this one's keys are multiplied: all at once they
// would fill the queue of misses and hold up the products. Into L2: what is asked for into L1 takes a place in its short
// queue of misses until it comes.
struct Ahead {
  const uint8_t *keys, *values;

  Ahead(const KvSpan& span, int32_t block, int32_t key_bytes)
      : keys(span.head(block + 1 < span.to ? block + 1 : block)), values(span.head(block) + key_bytes) {}
  template <int kLines>
  void next() {
    for (int i = 0; i < kLines; i++, keys += 64, values += 64) {
      prefetch_to_l2(keys);
      prefetch_to_l2(values);
    }
  }
};

// What is computed in loops of many sums is a function of its own: within a larger one gcc keeps the constants of exp in
// registers and the sums in memory.
#define APART __attribute__((noinline))

// A form of KV offers, for R queries: `set_query`, which gives the factor that its scores lack; `scores`, of all positions of
// a span; `weigh`, what softmax weights p of 16 positions become; `set_weights`, which takes those of the span's positions, and
// each query's largest; and `outputs`, B * 16 dimensions from d on. Blocks of lanes share each query value's broadcast: few
// queries still make enough chains.

// --- fp16 ------------------------------------------------------------------------------------------------------------
// Sums over fp16 rows, `stride` values apart: one chain over the even rows and one over the odd. The lanes' blocks lie `next`
// values apart.
template <int R, int B>
struct HalfSums {
  F even[B][R], odd[B][R];

  HalfSums() {
    for (int j = 0; j < B; j++)
      for (int r = 0; r < R; r++) even[j][r] = odd[j][r] = splat(0.0f);
  }
  template <bool kAhead = false>
  void take(const uint16_t* b, int64_t stride, int64_t next, const float* a, int64_t a_stride, int32_t count,
            Ahead* ahead = nullptr) {
    for (int32_t i = 0; i < count; i += 2, b += 2 * stride, a += 2) {
      if (kAhead) ahead->next<B>();
      F be[B], bo[B];
      for (int j = 0; j < B; j++) {
        be[j] = load_half(b + j * next);
        bo[j] = load_half(b + stride + j * next);
      }
      for (int r = 0; r < R; r++) {
        const F ae = splat(a[r * a_stride]), ao = splat(a[r * a_stride + 1]);
        for (int j = 0; j < B; j++) {
          even[j][r] = fma(be[j], ae, even[j][r]);
          odd[j][r] = fma(bo[j], ao, odd[j][r]);
        }
      }
    }
  }
  F sum(int j, int r) const { return add(even[j][r], odd[j][r]); }
};

template <int R>
struct HalfKv {
  static constexpr int B = R <= kWideQueries ? 2 : 1;
  alignas(64) float queries[R][kMaxHeadDim];
  const float (*weights)[kAttentionBlock];

  float set_query(int r, const float* q, int32_t dim) {
    for (int32_t i = 0; i < dim; i += kLanes) store(queries[r] + i, load(q + i));
    return 1.0f;
  }

  template <bool kAhead>
  APART void scores(const KvSpan& span, float (*out)[kAttentionBlock]) const {
    const int32_t dim = span.args.head_dim, key_bytes = kKvBlock * dim * 2;
    for (int32_t b = span.from; b < span.to; b++) {
      Ahead ahead(span, b, key_bytes);
      const uint16_t* keys = reinterpret_cast<const uint16_t*>(span.head(b));
      for (int half = 0; half < 2; half += B) {
        HalfSums<R, B> sums;
        sums.template take<kAhead>(keys + int64_t(half) * kLanes * dim, kLanes, int64_t(kLanes) * dim, queries[0],
                                   kMaxHeadDim, dim, &ahead);
        for (int j = 0; j < B; j++)
          for (int r = 0; r < R; r++) store(out[r] + b * kKvBlock + (half + j) * kLanes, sums.sum(j, r));
      }
    }
  }

  F weigh(int32_t, F p) const { return p; }
  template <int N>
  void set_weights(int r, const KvSpan&, const float (*p)[kAttentionBlock], const F (&)[N]) {
    if (r == 0) weights = p;
  }

  APART void outputs(const KvSpan& span, int32_t d, F (&acc)[B][R]) const {
    const int32_t dim = span.args.head_dim;
    HalfSums<R, B> sums;
    for (int32_t b = span.from; b < span.to; b++) {
      const uint16_t* values = reinterpret_cast<const uint16_t*>(span.head(b)) + int64_t(kKvBlock) * dim;
      sums.take(values + d, dim, kLanes, weights[0] + b * kKvBlock, kAttentionBlock, kKvBlock);
    }
    for (int j = 0; j < B; j++)
      for (int r = 0; r < R; r++) acc[j][r] = sums.sum(j, r);
  }
};

// --- int8 ------------------------------------------------------------------------------------------------------------
// Sums of integers are exact, so their order is free: queries and softmax weights are rounded to 16 bits (two int8 terms),
// each with one scale, and multiplied with the bytes of keys and values. 256 products of 16 and 8 bits fit into 31.
constexpr float kTermRange = 32512.0f;

static_assert(kAttentionBlock <= kMaxHeadDim, "terms are those of a query or of a block's weights");

// 16-bit integers of up to 256 values as high and low terms: value = scale * (256*high + low).
struct TwoTerms {
  alignas(64) int8_t high[kMaxHeadDim], low[kMaxHeadDim];
  float scale;
  int32_t offset;  // 128 times the sum of the integers

  // `peak` is the largest magnitude of the values; gives what they are multiplied with before they are rounded.
  float open(float peak) {
    const bool zero = !(peak > 1e-30f);
    scale = zero ? 1.0f : peak / kTermRange;
    return zero ? 0.0f : kTermRange / peak;
  }
  // Rounds the values at i .. i + 16, and gives the integers.
  I put(int32_t i, F x, float inverse) {
    const I q = to_int(mul(x, splat(inverse)));
    int_store_bytes(high + i, int_shift_right_8(int_add(q, int_splat(128))));
    int_store_low_bytes(low + i, q);
    return q;
  }
};

inline float peak_of(const float* x, int32_t from, int32_t to) {
  F peak = splat(0.0f);
  for (int32_t i = from; i < to; i += kLanes) peak = fmax(peak, absolute(load(x + i)));
  return max_lanes(peak);
}

// The exact sum of products with bytes that are stored plus 128, from the sums of both terms' products.
inline I join_terms(I high, I low, const TwoTerms& terms) {
  return int_sub(int_add(int_shift_left_8(high), low), int_splat(terms.offset));
}

template <int R, int B>
struct TwoTermSums {
  I high[B][R], low[B][R];

  TwoTermSums() {
    for (int j = 0; j < B; j++)
      for (int r = 0; r < R; r++) high[j][r] = low[j][r] = int_splat(0);
  }
  // Products of bytes, whose blocks of lanes lie `next` apart, with values i .. i + 4.
  void take(const uint8_t* bytes, int32_t next, const TwoTerms* terms, int32_t i) {
    W w[B];
    for (int j = 0; j < B; j++) w[j] = load_bytes(bytes + j * next);
    for (int r = 0; r < R; r++) {
      const Word h = load_word<B>(terms[r].high + i), l = load_word<B>(terms[r].low + i);
      for (int j = 0; j < B; j++) {
        high[j][r] = dot_word(high[j][r], w[j], h);
        low[j][r] = dot_word(low[j][r], w[j], l);
      }
    }
  }
  F sum(int j, int r, const TwoTerms& terms) const { return to_float(join_terms(high[j][r], low[j][r], terms)); }
};

constexpr int32_t kScaleBytes = 2 * kKvBlock * int32_t(sizeof(float));

struct Int8Head {  // a head's part of a KV block
  const uint8_t *keys, *values;
  const float *key_scales, *value_scales;

  Int8Head(const uint8_t* head, int32_t dim)
      : keys(head),
        values(head + kKvBlock * dim),
        key_scales(reinterpret_cast<const float*>(head + 2 * kKvBlock * dim)),
        value_scales(key_scales + kKvBlock) {}
};

template <int R>
struct Int8Kv {
  static constexpr int B = R <= kWideQueries ? 2 : 1;
  TwoTerms queries[R], weights[R];
  alignas(64) float value_scales[kAttentionBlock];  // of the span's positions

  float set_query(int r, const float* q, int32_t dim) {
    const float inverse = queries[r].open(peak_of(q, 0, dim));
    I total = int_splat(0);
    for (int32_t i = 0; i < dim; i += kLanes) total = int_add(total, queries[r].put(i, load(q + i), inverse));
    queries[r].offset = 128 * int_sum_lanes(total);
    return queries[r].scale;
  }

  template <bool kAhead>
  APART void scores(const KvSpan& span, float (*out)[kAttentionBlock]) {
    const int32_t dim = span.args.head_dim;
    for (int32_t b = span.from; b < span.to; b++) {
      Ahead ahead(span, b, kKvBlock * dim);
      if (kAhead && b + 1 < span.to) prefetch_range(span.head(b + 1) + 2 * kKvBlock * dim, kScaleBytes);
      const Int8Head head(span.head(b), dim);
      for (int i = 0; i < kKvBlock; i += kLanes) store(value_scales + b * kKvBlock + i, load(head.value_scales + i));
      for (int half = 0; half < 2; half += B) {
        TwoTermSums<R, B> sums;
        for (int32_t d = 0; d < dim; d += 4) {
          if (kAhead) ahead.template next<B>();
          sums.take(head.keys + (half * dim + d) * kLanes, dim * kLanes, queries, d);
        }
        for (int j = 0; j < B; j++) {
          const F scales = load(head.key_scales + (half + j) * kLanes);
          for (int r = 0; r < R; r++)
            store(out[r] + b * kKvBlock + (half + j) * kLanes, mul(sums.sum(j, r, queries[r]), scales));
        }
      }
    }
  }

  // The values' scales go into the weights, before these are rounded.
  F weigh(int32_t i, F p) const { return mul(p, load(value_scales + i)); }
  template <int N>
  void set_weights(int r, const KvSpan& span, const float (*p)[kAttentionBlock], const F (&peak)[N]) {
    float inverse[N];
    I total[N];
    for (int n = 0; n < N; n++) inverse[n] = weights[r + n].open(max_lanes(peak[n]));
    for (int n = 0; n < N; n++) total[n] = int_splat(0);
    for (int32_t i = span.from * kKvBlock; i < span.to * kKvBlock; i += kLanes)
      for (int n = 0; n < N; n++) total[n] = int_add(total[n], weights[r + n].put(i, load(p[n] + i), inverse[n]));
    for (int n = 0; n < N; n++) weights[r + n].offset = 128 * int_sum_lanes(total[n]);
  }

  APART void outputs(const KvSpan& span, int32_t d, F (&acc)[B][R]) const {
    const int32_t dim = span.args.head_dim;
    TwoTermSums<R, B> sums;
    for (int32_t b = span.from; b < span.to; b++) {
      const uint8_t* values = Int8Head(span.head(b), dim).values + d * 4;
      for (int p = 0; p < kKvBlock; p += 4, values += dim * 4)
        sums.take(values, kLanes * 4, weights, b * kKvBlock + p);
    }
    for (int j = 0; j < B; j++)
      for (int r = 0; r < R; r++) acc[j][r] = mul(sums.sum(j, r, weights[r]), splat(weights[r].scale));
  }
};

// --- softmax and merge -----------------------------------------------------------------------------------------------
// Softmax of R queries over the blocks so far; a query is a lane of what is a number. Maxima are logarithms to base 2.
template <int R>
struct SoftmaxState {
  static_assert(R <= kLanes, "a lane for each query");
  alignas(64) float max[kLanes], sum[kLanes], out[R][kMaxHeadDim];
  alignas(64) float block_max[kLanes], block_sum[kLanes], keep[kLanes], take[kLanes];

  void open(int32_t dim) {
    store(max, splat(kMasked));
    store(sum, splat(0.0f));
    store(block_max, splat(0.0f));
    store(block_sum, splat(0.0f));
    for (int r = 0; r < R; r++)
      for (int32_t i = 0; i < dim; i += kLanes) store(out[r] + i, splat(0.0f));
  }
  // Takes in the block's maxima and sums; gives the factors of what was there, and of the block's values.
  void merge() {
    const F before = load(max), block = load(block_max), m = fmax(block, before);
    const F kept = exp2_lanes(sub(before, m)), taken = exp2_lanes(sub(block, m));
    store(sum, add(mul(load(sum), kept), mul(load(block_sum), taken)));
    store(max, m);
    store(keep, kept);
    store(take, taken);
  }
  void add_values(int r, int32_t d, F values) {
    store(out[r] + d, add(mul(load(out[r] + d), splat(keep[r])), mul(values, splat(take[r]))));
  }
  void close(int r, int32_t dim, float* target) const {
    const F inverse = splat(1.0f / sum[r]);
    for (int32_t d = 0; d < dim; d += kLanes) store(target + d, mul(load(out[r] + d), inverse));
  }
};

// Where a query lies, which positions it sees ([first, last]), and where its parts are.
struct Query {
  int32_t first = 0, last = 0;
  const float* source = nullptr;
  float* target = nullptr;
  float* parts = nullptr;  // [attention blocks][kPartHead + head_dim]

  void find(const AttentionArgs& args, int32_t kv_head, const AttentionRow& row, int32_t head_of_row) {
    const int64_t head = int64_t(kv_head) * args.heads_per_kv + head_of_row;
    last = row.position;
    first = args.window > 0 && last >= args.window ? last - args.window + 1 : 0;
    source = args.q + row.row * args.q_stride + head * args.head_dim;
    target = args.out + row.row * args.out_stride + head * args.head_dim;
    if (args.parts) parts = args.parts + row.parts + head * row.part_blocks * (kPartHead + args.head_dim);
  }
  float* part(const AttentionArgs& args, int32_t block) const {
    return parts + int64_t(block) * (kPartHead + args.head_dim);
  }
};

// Turns the scores of a block into weights, for N queries from r on. Each step is done for all of them before the next, so
// that none waits for the one long chain of a query's maximum, weights and their rounding.
template <int N, class Form, int R>
APART void softmax(const KvSpan& span, int r, const Query* query, const float* factor, int32_t base, Form& form,
                   float (*scores)[kAttentionBlock], SoftmaxState<R>& state) {
  const int32_t from = span.from * kKvBlock, to = span.to * kKvBlock;
  for (int n = 0; n < N; n++) {
    // Only the ends of the range can be out of a query's sight.
    const int32_t first = query[n].first - base, after = query[n].last - base + 1;
    for (int32_t i = after > from ? after : from; i < to; i++) scores[n][i] = kMasked;
    for (int32_t i = from; i < to && i < first; i++) scores[n][i] = kMasked;
  }
  F max[N], sum[N], peak[N];
  for (int n = 0; n < N; n++) max[n] = splat(kMasked);
  for (int32_t i = from; i < to; i += kLanes)
    for (int n = 0; n < N; n++) max[n] = fmax(max[n], load(scores[n] + i));
  float shift[N];
  for (int n = 0; n < N; n++) {
    const float top = max_lanes(max[n]);
    const bool seen = top > kMasked;
    shift[n] = seen ? top : 0.0f;
    state.block_max[r + n] = seen ? top * factor[n] : kMasked;
  }
  for (int n = 0; n < N; n++) sum[n] = peak[n] = splat(0.0f);
  for (int32_t i = from; i < to; i += kLanes)
    for (int n = 0; n < N; n++) {
      const F p = exp2_lanes(mul(sub(load(scores[n] + i), splat(shift[n])), splat(factor[n]))), weight = form.weigh(i, p);
      store(scores[n] + i, weight);
      sum[n] = add(sum[n], p);
      peak[n] = fmax(peak[n], weight);
    }
  for (int n = 0; n < N; n++) state.block_sum[r + n] = sum_lanes(sum[n]);
  form.set_weights(r, span, scores, peak);
}

// Queries begin .. begin + R. `kAhead` asks for KV before it is needed: the first tile may wait for memory, and the others find
// in the cache what it read.
template <template <int> class Form, int R, bool kAhead>
inline void attention_tile(const AttentionArgs& args, int32_t kv_head, int32_t begin) {
  constexpr int B = Form<R>::B, N = R <= 8 ? R : 8;
  static_assert(R % N == 0, "queries go through softmax in equal parts");
  const int32_t dim = args.head_dim;
  Form<R> form;
  alignas(64) float scores[R][kAttentionBlock];
  Query query[R];
  float factor[R];
  SoftmaxState<R> state;
  state.open(dim);
  int32_t end = 0, start = 0x7fffffff;
  const AttentionRow* row = args.rows + begin / args.heads_per_kv;
  for (int r = 0, head = begin % args.heads_per_kv; r < R; r++, head++) {
    if (head == args.heads_per_kv) head = 0, row++;
    query[r].find(args, kv_head, *row, head);
    factor[r] = form.set_query(r, query[r].source, dim) * (args.scale * kLog2E);
    end = query[r].last + 1 > end ? query[r].last + 1 : end;
    start = query[r].first < start ? query[r].first : start;
  }
  const int32_t head_offset = int32_t(kv_head * kv_head_bytes(args.kind, dim));
  const int32_t first_block = start / kAttentionBlock > args.block_begin ? start / kAttentionBlock : args.block_begin;
  const int32_t end_block = (end + kAttentionBlock - 1) / kAttentionBlock;
  for (int32_t block = first_block; block < end_block && block < args.block_end; block++) {
    const int32_t base = block * kAttentionBlock, limit = end - base < kAttentionBlock ? end - base : kAttentionBlock;
    // KV blocks before the first that a query sees may be free by now.
    const KvSpan span{args, args.block_table + base / kKvBlock, head_offset, start > base ? (start - base) / kKvBlock : 0,
                      (limit + kKvBlock - 1) / kKvBlock};
    form.template scores<kAhead>(span, scores);
    for (int r = 0; r < R; r += N) softmax<N>(span, r, query + r, factor + r, base, form, scores + r, state);
    if (args.parts) {
      for (int r = 0; r < R; r++) {
        float* part = query[r].part(args, block);
        part[0] = state.block_max[r];
        part[1] = state.block_sum[r];
      }
    } else {
      state.merge();
    }
    for (int32_t d = 0; d < dim; d += B * kLanes) {  // head_dim is a multiple of 32
      F acc[B][R];
      form.outputs(span, d, acc);
      for (int r = 0; r < R; r++) {
        for (int j = 0; j < B; j++) {
          if (args.parts)
            store(query[r].part(args, block) + kPartHead + d + j * kLanes, acc[j][r]);
          else
            state.add_values(r, d + j * kLanes, acc[j][r]);
        }
      }
    }
  }
  if (args.parts) return;
  for (int r = 0; r < R; r++) state.close(r, dim, query[r].target);
}

// The same steps in the same order over stored parts.
void attention_merge(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  for (int32_t i = begin; i < end; i++) {
    Query query;
    query.find(args, kv_head, args.rows[i / args.heads_per_kv], i % args.heads_per_kv);
    SoftmaxState<1> state;
    state.open(args.head_dim);
    for (int32_t block = query.first / kAttentionBlock; block <= query.last / kAttentionBlock; block++) {
      const float* part = query.part(args, block);
      state.block_max[0] = part[0];
      state.block_sum[0] = part[1];
      state.merge();
      for (int32_t d = 0; d < args.head_dim; d += kLanes) state.add_values(0, d, load(part + kPartHead + d));
    }
    state.close(0, args.head_dim, query.target);
  }
}

template <template <int> class Form, bool kAhead>
inline void attention_count(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t count) {
  static_assert(kQueryTile == 6, "a case for each");
  switch (count) {
    case 6: attention_tile<Form, 6, kAhead>(args, kv_head, begin); break;
    case 5: attention_tile<Form, 5, kAhead>(args, kv_head, begin); break;
    case 4: attention_tile<Form, 4, kAhead>(args, kv_head, begin); break;
    case 3: attention_tile<Form, 3, kAhead>(args, kv_head, begin); break;
    case 2: attention_tile<Form, 2, kAhead>(args, kv_head, begin); break;
    case 1: attention_tile<Form, 1, kAhead>(args, kv_head, begin); break;
  }
}

// As few tiles as there can be, and these of one size: a last one of a query or two would make too few chains.
template <template <int> class Form>
inline void attention_form(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  const int32_t count = end - begin, tiles = (count + kQueryTile - 1) / kQueryTile;
  for (int32_t t = 0; t < tiles; t++) {
    const int32_t first = count * t / tiles, queries = count * (t + 1) / tiles - first;
    t == 0 ? attention_count<Form, true>(args, kv_head, begin + first, queries)
           : attention_count<Form, false>(args, kv_head, begin + first, queries);
  }
}

inline void attention_generic(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  args.kind == KvKind::kHalf ? attention_form<HalfKv>(args, kv_head, begin, end)
                             : attention_form<Int8Kv>(args, kv_head, begin, end);
}

// --- store -----------------------------------------------------------------------------------------------------------
inline void store_half_kv(const float* key, const float* value, int32_t dim, int32_t p, uint8_t* head) {
  const F most = splat(65504.0f), least = splat(-65504.0f);
  uint16_t* keys = reinterpret_cast<uint16_t*>(head);
  uint16_t* values = keys + int64_t(kKvBlock + p) * dim;
  uint16_t* column = keys + int64_t(p / kLanes) * kLanes * dim + p % kLanes;
  alignas(64) uint16_t half[kLanes];
  for (int32_t d = 0; d < dim; d += kLanes) {
    store_half(half, fmax(fmin(load(key + d), most), least));
    for (int i = 0; i < kLanes; i++) column[(d + i) * kLanes] = half[i];
    store_half(values + d, fmax(fmin(load(value + d), most), least));
  }
}

// Rounds to bytes with one scale, and gives the scale. Saturates, as fp16 does: nobody clears a block, and an infinite scale
// that one sequence leaves would make weights of 0 NaN for the next.
inline float round_bytes(const float* x, int32_t dim, int8_t* out) {
  constexpr float kMost = 3.4028235e38f;
  const float found = peak_of(x, 0, dim), peak = found < kMost ? found : kMost;
  const bool zero = !(found > 1e-30f);
  const F inverse = splat(zero ? 0.0f : 127.0f / peak), most = splat(kMost), least = splat(-kMost);
  for (int32_t i = 0; i < dim; i += kLanes)
    int_store_bytes(out + i, to_int(mul(fmax(fmin(load(x + i), most), least), inverse)));
  return zero ? 0.0f : peak / 127.0f;
}

inline void store_int8_kv(const float* key, const float* value, int32_t dim, int32_t p, uint8_t* head) {
  alignas(64) int8_t bytes[kMaxHeadDim];
  float* scales = reinterpret_cast<float*>(head + 2 * kKvBlock * dim) + p;
  scales[0] = round_bytes(key, dim, bytes);
  uint8_t* keys = head + p / kLanes * kLanes * dim + p % kLanes * 4;
  for (int32_t d = 0; d < dim; d++) keys[d / 4 * 4 * kLanes + d % 4] = uint8_t(bytes[d] + 128);
  scales[kKvBlock] = round_bytes(value, dim, bytes);
  uint8_t* values = head + (kKvBlock + p / 4 * 4) * dim + p % 4;
  for (int32_t d = 0; d < dim; d++) values[d * 4] = uint8_t(bytes[d] + 128);
}

void store_kv(KvKind kind, const float* key, const float* value, int32_t head_dim, int32_t p, uint8_t* head) {
  (kind == KvKind::kHalf ? store_half_kv : store_int8_kv)(key, value, head_dim, p, head);
}
