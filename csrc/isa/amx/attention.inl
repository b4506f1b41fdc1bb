// Attention of 16 queries at once over int8 keys and values, on the tile unit. Included by kernels.cpp. The integers are those
// of Int8Kv, and so are the float steps after them.

// Tiles: 0, 1 sums of the high and the low terms; 2, 3 weights (16 queries x 32 positions); 4, 5 queries (16 x 64
// dimensions, or 32 where the head has an odd number of those); 6 keys (that many dimensions x 16 positions); 7 values
// (32 positions x 16 dimensions). Keys and values lie in memory as tiles of four bytes a cell.
inline int32_t query_tile_dims(int32_t head_dim) { return head_dim % 64 ? 32 : 64; }

inline void configure_attention(int32_t head_dim) {
  const int32_t dims = query_tile_dims(head_dim);
  TileConfig config;
  for (int t = 0; t < 2; t++) config.set(t, 16, 64);
  for (int t = 2; t < 4; t++) config.set(t, 16, kKvBlock);
  for (int t = 4; t < 6; t++) config.set(t, 16, dims);
  config.set(6, dims / 4, 64);
  config.set(7, kKvBlock / 4, 64);
  tile_configure(config);
}

template <int R>
struct TileInt8Kv : Int8Kv<R> {
  static_assert(R == kTileRows, "a tile has a row for each query");
  static constexpr int64_t kStride = sizeof(TwoTerms);  // from one query's terms to the next's
  using Sums = int32_t[R][kLanes];

  static F joined(const Sums& high, const Sums& low, int r, const TwoTerms& terms) {
    return to_float(join_terms(_mm512_load_si512(high[r]), _mm512_load_si512(low[r]), terms));
  }

  void load_queries(int32_t d) const {
    tile_load<4>(this->queries[0].high + d, kStride);
    tile_load<5>(this->queries[0].low + d, kStride);
  }

  template <bool kAhead>
  APART void scores(const KvSpan& span, float (*out)[kAttentionBlock]) {
    const int32_t dim = span.args.head_dim, step = query_tile_dims(dim);
    const bool whole = dim == step;  // one tile holds all dimensions
    if (whole) load_queries(0);
    alignas(64) Sums high, low;
    for (int32_t b = span.from; b < span.to; b++) {
      const Int8Head head(span.head(b), dim);
      for (int i = 0; i < kKvBlock; i += kLanes) {
        tile_zero<0>();
        tile_zero<1>();
        for (int32_t d = 0; d < dim; d += step) {
          if (!whole) load_queries(d);
          tile_load<6>(head.keys + i * dim + d * kLanes, 64);
          tile_dpbsud<0, 4, 6>();
          tile_dpbsud<1, 5, 6>();
        }
        tile_store<0>(high, 64);
        tile_store<1>(low, 64);
        store(this->value_scales + b * kKvBlock + i, load(head.value_scales + i));
        const F scales = load(head.key_scales + i);
        for (int r = 0; r < R; r++)
          store(out[r] + b * kKvBlock + i, mul(joined(high, low, r, this->queries[r]), scales));
      }
    }
  }

  APART void outputs(const KvSpan& span, int32_t d, F (&acc)[1][R]) const {
    const int32_t dim = span.args.head_dim;
    tile_zero<0>();
    tile_zero<1>();
    for (int32_t b = span.from; b < span.to; b++) {
      tile_load<7>(Int8Head(span.head(b), dim).values + d * 4, int64_t(dim) * 4);
      tile_load<2>(this->weights[0].high + b * kKvBlock, kStride);
      tile_load<3>(this->weights[0].low + b * kKvBlock, kStride);
      tile_dpbsud<0, 2, 7>();
      tile_dpbsud<1, 3, 7>();
    }
    alignas(64) Sums high, low;
    tile_store<0>(high, 64);
    tile_store<1>(low, 64);
    for (int r = 0; r < R; r++) acc[0][r] = mul(joined(high, low, r, this->weights[r]), splat(this->weights[r].scale));
  }
};

// Queries beyond the last 16 take the vector units, as do fp16 keys and values, which the tile unit cannot multiply.
void attention(const AttentionArgs& args, int32_t kv_head, int32_t begin, int32_t end) {
  int32_t i = begin;
  if (args.kind == KvKind::kInt8 && end - begin >= kTileRows) {
    configure_attention(args.head_dim);
    for (; i + kTileRows <= end; i += kTileRows) attention_tile<TileInt8Kv, kTileRows, false>(args, kv_head, i);
    tile_release();
  }
  attention_generic(args, kv_head, i, end);
}
