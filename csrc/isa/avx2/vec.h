// 16 lanes in two 256-bit registers, for all tiers of such: integer products are a tier's own (dot.h). Included inside
// an anonymous namespace, after <immintrin.h>.

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
using W = I;

inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
inline F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F fmax(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline F fmin(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F absolute(F a) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask)};
}
inline F round_nearest(F a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
inline F zero_below(F x, float limit, F y) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, l, _CMP_GE_OQ), y.lo),
          _mm256_and_ps(_mm256_cmp_ps(x.hi, l, _CMP_GE_OQ), y.hi)};
}
inline __m256 power_of_two_half(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F power_of_two(F n) { return {power_of_two_half(n.lo), power_of_two_half(n.hi)}; }
inline __m256 raise_exponent_half(__m256 x, __m256 n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
// x * 2^n for whole n, by its exponent: x may not become subnormal, but 1 * 2^-127 is 0
inline F raise_exponent(F x, F n) { return {raise_exponent_half(x.lo, n.lo), raise_exponent_half(x.hi, n.hi)}; }
inline float square_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

inline I int_splat(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I int_add(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline I int_sub(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline I int_max(I a, I b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
inline int32_t int_max_lanes(I a) {
  const __m256i both = _mm256_max_epi32(a.lo, a.hi);
  const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
inline I magnitude_bits(F a) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  return {_mm256_and_si256(_mm256_castps_si256(a.lo), mask), _mm256_and_si256(_mm256_castps_si256(a.hi), mask)};
}
inline F as_float(I bits) { return {_mm256_castsi256_ps(bits.lo), _mm256_castsi256_ps(bits.hi)}; }
// 0 where x < limit, else y; NaN is not less
inline F zero_if_less(F x, float limit, F y) {
  const __m256 l = _mm256_set1_ps(limit);
  return {_mm256_and_ps(_mm256_cmp_ps(x.lo, l, _CMP_NLT_UQ), y.lo), _mm256_and_ps(_mm256_cmp_ps(x.hi, l, _CMP_NLT_UQ), y.hi)};
}
inline I int_shift_left_8(I a) { return {_mm256_slli_epi32(a.lo, 8), _mm256_slli_epi32(a.hi, 8)}; }
inline I int_load(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
inline void int_store(int32_t* p, I v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), v.hi);
}
inline I int_shift_right_8(I a) { return {_mm256_srai_epi32(a.lo, 8), _mm256_srai_epi32(a.hi, 8)}; }
inline int32_t int_sum_lanes(I a) {
  const __m256i both = _mm256_add_epi32(a.lo, a.hi);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
inline void int_store_bytes(int8_t* p, I v) {  // |v| <= 128
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(v.lo, v.hi), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline void int_store_low_bytes(int8_t* p, I v) {  // v mod 256
  int_store_bytes(p, {_mm256_srai_epi32(_mm256_slli_epi32(v.lo, 24), 24), _mm256_srai_epi32(_mm256_slli_epi32(v.hi, 24), 24)});
}
inline F to_float(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
inline I to_int(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
inline void keep_greater_half(__m256& best, __m256i& where, __m256 x, int32_t base) {
  const __m256 greater = _mm256_cmp_ps(x, best, _CMP_GT_OQ);
  best = _mm256_blendv_ps(best, x, greater);
  where = _mm256_blendv_epi8(where, _mm256_set1_epi32(base), _mm256_castps_si256(greater));
}
inline void keep_greater(F& best, I& where, F x, int32_t base) {
  keep_greater_half(best.lo, where.lo, x.lo, base);
  keep_greater_half(best.hi, where.hi, x.hi, base);
}

inline W load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline W low_nibbles(W w) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(w.lo, mask), _mm256_and_si256(w.hi, mask)};
}
inline W high_nibbles(W w) {
  return low_nibbles({_mm256_srli_epi16(w.lo, 4), _mm256_srli_epi16(w.hi, 4)});
}
inline F load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store_half(uint16_t* p, F v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(v.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline F even_bf16(W w) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(w.lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(w.hi, 16))};
}
inline F odd_bf16(W w) {
  const __m256i mask = _mm256_set1_epi32(int32_t(0xffff0000));
  return {_mm256_castsi256_ps(_mm256_and_si256(w.lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(w.hi, mask))};
}
// a[0..4) in every lane
using Word = __m256i;
template <int kUses>
inline Word load_word(const int8_t* a) {
  int32_t word;
  __builtin_memcpy(&word, a, 4);
  return _mm256_set1_epi32(word);
}
inline void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
inline void prefetch_to_l2(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

// Lanes are joined in halves: i with i + 8, then i + 4, i + 2, i + 1.
inline float sum_lanes(F v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_lanes(F v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

#include "generic/each_lane.inl"
