// Tiles in software, for tests of the kernels on machines without AMX; see tiles.h. What the Intel SDM's pseudo code
// says of each instruction, over AVX-512. What would fault (#GP, #UD) ends the process with a message. A `start_row`,
// which an interrupted load leaves behind, is refused.

struct alignas(64) Tile {
  uint8_t row[kTileMaxRows][kTileMaxRowBytes];  // zero above the configured rows and bytes
};
struct TileState {
  bool configured;
  TileConfig config;
  Tile tile[kTileCount];
};
// Initialised without a constructor, so that no wrapper function is needed (it would be a weak symbol).
alignas(64) thread_local unsigned char tile_memory[sizeof(TileState)];
inline TileState& tile_state() { return *reinterpret_cast<TileState*>(tile_memory); }

[[noreturn]] __attribute__((noinline, cold)) void tile_fault(const char* instruction, const char* reason) {
  std::fprintf(stderr, "interlingua: emulated %s: %s\n", instruction, reason);
  std::abort();
}

inline bool all_zero(const uint8_t* bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (bytes[i]) return false;
  return true;
}

__attribute__((noinline)) void tile_release() { __builtin_memset(tile_memory, 0, sizeof tile_memory); }

__attribute__((noinline)) void tile_configure(const TileConfig& config) {
  constexpr const char* name = "LDTILECFG";
  tile_release();
  if (config.palette == 0) return;  // the initial state: no tiles
  if (config.palette != 1) tile_fault(name, "there are palettes 0 and 1");
  if (config.start_row != 0) tile_fault(name, "start_row must be 0 here");
  if (!all_zero(config.reserved, sizeof config.reserved)) tile_fault(name, "reserved bytes must be 0");
  for (int t = 0; t < 16; t++) {
    const int rows = config.rows[t], bytes = config.row_bytes[t];
    if (t >= kTileCount && (rows || bytes)) tile_fault(name, "there are 8 tiles");
    if (rows > kTileMaxRows) tile_fault(name, "a tile has at most 16 rows");
    if (bytes > kTileMaxRowBytes) tile_fault(name, "a row has at most 64 bytes");
    if ((rows == 0) != (bytes == 0)) tile_fault(name, "rows without bytes, or bytes without rows");
  }
  tile_state().config = config;
  tile_state().configured = true;
}

inline Tile& configured_tile(const char* instruction, int t) {
  TileState& state = tile_state();
  if (!state.configured) tile_fault(instruction, "tiles are not configured");
  if (!state.config.rows[t]) tile_fault(instruction, "this tile is not configured");
  return state.tile[t];
}

template <int T>
inline void tile_zero() {
  static_assert(T >= 0 && T < kTileCount, "there are 8 tiles");
  configured_tile("TILEZERO", T) = Tile{};
}

__attribute__((noinline)) void load_tile(int t, const uint8_t* memory, int64_t stride) {
  Tile& tile = configured_tile("TILELOADD", t);
  const TileConfig& config = tile_state().config;
  tile = Tile{};
  for (int r = 0; r < config.rows[t]; r++) __builtin_memcpy(tile.row[r], memory + r * stride, config.row_bytes[t]);
}
template <int T>
inline void tile_load(const void* memory, int64_t stride) {
  static_assert(T >= 0 && T < kTileCount, "there are 8 tiles");
  load_tile(T, static_cast<const uint8_t*>(memory), stride);
}

__attribute__((noinline)) void store_tile(int t, uint8_t* memory, int64_t stride) {
  const Tile& tile = configured_tile("TILESTORED", t);
  const TileConfig& config = tile_state().config;
  for (int r = 0; r < config.rows[t]; r++) __builtin_memcpy(memory + r * stride, tile.row[r], config.row_bytes[t]);
}
template <int T>
inline void tile_store(void* memory, int64_t stride) {
  static_assert(T >= 0 && T < kTileCount, "there are 8 tiles");
  store_tile(T, static_cast<uint8_t*>(memory), stride);
}

// The operands of a product, checked: C [m][n] += A [m][k] B [k][n], all in 4-byte elements.
struct TileProductView {
  Tile& c;
  const Tile& a;
  const Tile& b;
  int m, k;
  __mmask16 columns;  // the configured ones
};
inline TileProductView open_product(const char* name, int c, int a, int b) {
  Tile &tile_c = configured_tile(name, c), &tile_a = configured_tile(name, a), &tile_b = configured_tile(name, b);
  const TileConfig& config = tile_state().config;
  const int a_bytes = config.row_bytes[a], b_bytes = config.row_bytes[b], c_bytes = config.row_bytes[c];
  if (a_bytes % 4 || b_bytes % 4 || c_bytes % 4) tile_fault(name, "rows must have a multiple of 4 bytes");
  if (config.rows[a] != config.rows[c]) tile_fault(name, "A and C differ in rows");
  if (a_bytes / 4 != config.rows[b]) tile_fault(name, "A's columns are not B's rows");
  if (b_bytes != c_bytes) tile_fault(name, "B and C differ in columns");
  return {tile_c, tile_a, tile_b, config.rows[c], config.rows[b], __mmask16((1u << (c_bytes / 4)) - 1)};
}

inline __m512i element(const uint8_t* row, int k) {
  int32_t word;
  __builtin_memcpy(&word, row + 4 * k, 4);
  return _mm512_set1_epi32(word);
}

// Bytes 0 and 2, or 1 and 3, of each element, extended to 16 bits.
template <bool kSigned>
inline __m512i even_bytes(__m512i x) {
  return kSigned ? _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8) : _mm512_and_si512(x, _mm512_set1_epi16(0xff));
}
template <bool kSigned>
inline __m512i odd_bytes(__m512i x) {
  return kSigned ? _mm512_srai_epi16(x, 8) : _mm512_srli_epi16(x, 8);
}

// 16-bit products add up in pairs without loss (at most 2 * 255 * 255); int32 wraps, as on the tile unit.
template <bool kSignedA, bool kSignedB>
__attribute__((noinline)) void multiply_bytes(const char* name, int c, int a, int b) {
  const TileProductView p = open_product(name, c, a, b);
  for (int m = 0; m < p.m; m++) {
    __m512i sum = _mm512_load_si512(p.c.row[m]);
    for (int k = 0; k < p.k; k++) {
      const __m512i x = element(p.a.row[m], k), y = _mm512_load_si512(p.b.row[k]);
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even_bytes<kSignedA>(x), even_bytes<kSignedB>(y)));
      sum = _mm512_add_epi32(sum, _mm512_madd_epi16(odd_bytes<kSignedA>(x), odd_bytes<kSignedB>(y)));
    }
    _mm512_store_si512(p.c.row[m], _mm512_maskz_mov_epi32(p.columns, sum));
  }
}

// A function of its own, so that no float operation leaves the span in which the caller has set MXCSR.
__attribute__((noinline)) void multiply_pairs(const TileProductView& p) {
  const __m512i high = _mm512_set1_epi32(int32_t(0xffff0000));
  const auto first = [](__m512i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); };
  const auto second = [&](__m512i x) { return _mm512_castsi512_ps(_mm512_and_si512(x, high)); };
  for (int m = 0; m < p.m; m++) {
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
    for (int k = 0; k < p.k; k++) {
      const __m512i x = element(p.a.row[m], k), y = _mm512_load_si512(p.b.row[k]);
      even = _mm512_fmadd_ps(first(x), first(y), even);
      odd = _mm512_fmadd_ps(second(x), second(y), odd);
    }
    const __m512 sum = _mm512_add_ps(_mm512_load_ps(p.c.row[m]), _mm512_add_ps(even, odd));
    _mm512_store_ps(p.c.row[m], _mm512_maskz_mov_ps(p.columns, sum));
  }
}
__attribute__((noinline)) void multiply_pair_tiles(int c, int a, int b) {
  const TileProductView p = open_product("TDPBF16PS", c, a, b);
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // nearest even, subnormals are zero and become zero, nothing traps, whatever the thread has set
  multiply_pairs(p);
  _mm_setcsr(saved);
}

template <int C, int A, int B>
struct ThreeTiles {
  static_assert(C >= 0 && A >= 0 && B >= 0 && C < kTileCount && A < kTileCount && B < kTileCount, "there are 8 tiles");
  static_assert(C != A && C != B && A != B, "a product takes three tiles");
};
template <int C, int A, int B>
inline void tile_dpbssd() {
  ThreeTiles<C, A, B>();
  multiply_bytes<true, true>("TDPBSSD", C, A, B);
}
template <int C, int A, int B>
inline void tile_dpbsud() {
  ThreeTiles<C, A, B>();
  multiply_bytes<true, false>("TDPBSUD", C, A, B);
}
template <int C, int A, int B>
inline void tile_dpbusd() {
  ThreeTiles<C, A, B>();
  multiply_bytes<false, true>("TDPBUSD", C, A, B);
}
template <int C, int A, int B>
inline void tile_dpbuud() {
  ThreeTiles<C, A, B>();
  multiply_bytes<false, false>("TDPBUUD", C, A, B);
}
template <int C, int A, int B>
inline void tile_dpbf16ps() {
  ThreeTiles<C, A, B>();
  multiply_pair_tiles(C, A, B);
}
