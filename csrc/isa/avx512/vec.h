// 16 lanes in one 512-bit register. Included inside an anonymous namespace, after <immintrin.h>.

using F = __m512;
using I = __m512i;
using W = __m512i;
using Word = __m512i;

inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F v) { _mm512_storeu_ps(p, v); }
inline F splat(float x) { return _mm512_set1_ps(x); }
inline F add(F a, F b) { return _mm512_add_ps(a, b); }
inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F div(F a, F b) { return _mm512_div_ps(a, b); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F fmax(F a, F b) { return _mm512_max_ps(a, b); }
inline F fmin(F a, F b) { return _mm512_min_ps(a, b); }
inline F absolute(F a) { return _mm512_abs_ps(a); }
inline F round_nearest(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// y where x >= limit, else 0
inline F zero_below(F x, float limit, F y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(limit), _CMP_GE_OQ), y);
}
// 2^n for whole n in [-126, 127]
inline F power_of_two(F n) {
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
// x * 2^n for whole n, by its exponent: x may not become subnormal, but 1 * 2^-127 is 0
inline F raise_exponent(F x, F n) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

inline I int_splat(int32_t x) { return _mm512_set1_epi32(x); }
inline I int_add(I a, I b) { return _mm512_add_epi32(a, b); }
inline I int_sub(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I int_max(I a, I b) { return _mm512_max_epi32(a, b); }
inline int32_t int_max_lanes(I a) { return _mm512_reduce_max_epi32(a); }
inline I magnitude_bits(F a) { return _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)); }
inline F as_float(I bits) { return _mm512_castsi512_ps(bits); }
// 0 where x < limit, else y; NaN is not less
inline F zero_if_less(F x, float limit, F y) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, splat(limit), _CMP_NLT_UQ), y);
}
inline I int_shift_left_8(I a) { return _mm512_slli_epi32(a, 8); }
inline void int_store(int32_t* p, I v) { _mm512_storeu_si512(p, v); }
inline I int_shift_right_8(I a) { return _mm512_srai_epi32(a, 8); }
inline int32_t int_sum_lanes(I a) { return _mm512_reduce_add_epi32(a); }
inline void int_store_bytes(int8_t* p, I v) {  // |v| <= 128
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
}
inline void int_store_low_bytes(int8_t* p, I v) { int_store_bytes(p, v); }  // v mod 256
inline F to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline I to_int(F a) { return _mm512_cvtps_epi32(a); }
inline void keep_greater(F& best, I& where, F x, int32_t base) {
  const __mmask16 greater = _mm512_cmp_ps_mask(x, best, _CMP_GT_OQ);
  best = _mm512_mask_mov_ps(best, greater, x);
  where = _mm512_mask_mov_epi32(where, greater, _mm512_set1_epi32(base));
}

inline W load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline W low_nibbles(W w) { return _mm512_and_si512(w, _mm512_set1_epi8(15)); }
inline W high_nibbles(W w) { return _mm512_and_si512(_mm512_srli_epi16(w, 4), _mm512_set1_epi8(15)); }
inline F load_half(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void store_half(uint16_t* p, F v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F even_bf16(W w) { return _mm512_castsi512_ps(_mm512_slli_epi32(w, 16)); }
inline F odd_bf16(W w) { return _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(int32_t(0xffff0000)))); }
// a[0..4) in every lane. Where several products use it, it stays in a register: gcc would read it again with each of them,
// and there are no more than two such reads a cycle.
template <int kUses>
inline Word load_word(const int8_t* a) {
  int32_t word;
  __builtin_memcpy(&word, a, 4);
  Word lanes = _mm512_set1_epi32(word);
  if constexpr (kUses > 1) asm("" : "+v"(lanes));
  return lanes;
}
// acc[lane] += sum of 4 products of the lane's unsigned bytes of w with those of the word. Assembly, because gcc 12 copies the
// intrinsic's sums from register to register, one copy a product, and keeps some of many in memory.
inline I dot_word(I acc, W w, Word a) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(a));
  return acc;
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_to_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Lanes are joined in halves: i with i + 8, then i + 4, i + 2, i + 1.
inline float sum_lanes(F v) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F v) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Joins the lanes of 16 vectors, each into the lane of its number. `join` takes two vectors, lane by lane.
template <class Join>
inline I join_each(const I (&v)[16], const Join& join) {
  I fours[4];  // each: four vectors' lanes side by side, four times
  for (int i = 0; i < 4; i++) {
    const I *a = v + 4 * i, *b = a + 1, *c = a + 2, *d = a + 3;
    const I ab = join(_mm512_unpacklo_epi32(*a, *b), _mm512_unpackhi_epi32(*a, *b));
    const I cd = join(_mm512_unpacklo_epi32(*c, *d), _mm512_unpackhi_epi32(*c, *d));
    fours[i] = join(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  }
  const auto halve = [&](I a, I b) { return join(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd)); };
  return halve(halve(fours[0], fours[1]), halve(fours[2], fours[3]));
}
inline I max_of_each(const I (&v)[16]) { return join_each(v, int_max); }
inline I sum_of_each(const I (&v)[16]) { return join_each(v, int_add); }
