// Integer products of AVX2, which has none of four bytes. Included after vec.h.

// Sums over a group of nibbles times bytes, in 16 bits: VPMADDUBSW adds two products, and each half of a lane sums one of
// its results a word, of which a group has eight: no more than 8 * 2 * 15 * 128 = 30,720.
struct NibbleSum {
  __m256i lo, hi;
};
inline NibbleSum dot_nibbles(NibbleSum acc, W w, Word a) {
  acc.lo = _mm256_add_epi16(acc.lo, _mm256_maddubs_epi16(w.lo, a));
  acc.hi = _mm256_add_epi16(acc.hi, _mm256_maddubs_epi16(w.hi, a));
  asm("" : "+x"(acc.lo), "+x"(acc.hi));  // gcc would make all products first, and keep them in memory
  return acc;
}
inline I total(NibbleSum sum) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sum.lo, ones), _mm256_madd_epi16(sum.hi, ones)};
}
// VPMADDUBSW would saturate (255 * 127 * 2 > 32767), so even and odd bytes are widened to 16 bits first.
inline __m256i dot_half(__m256i acc, __m256i w, Word a) {
  const __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(255)), w_odd = _mm256_srli_epi16(w, 8);
  const __m256i a_even = _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8), a_odd = _mm256_srai_epi16(a, 8);
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(w_even, a_even), _mm256_madd_epi16(w_odd, a_odd)));
}
inline I dot_word(I acc, W w, Word a) { return {dot_half(acc.lo, w.lo, a), dot_half(acc.hi, w.hi, a)}; }
inline I dot_u8s8(I acc, W w, const int8_t* a) { return dot_word(acc, w, load_word<1>(a)); }
