// Products of four bytes in AVX2, which has none. Included after vec.h.

// VPMADDUBSW would saturate (255 * 127 * 2 > 32767), so even and odd bytes are multiplied as 16-bit integers.
struct WideWord {
  __m256i even, odd;
};
inline __m256i even_bytes(__m256i a) { return _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8); }
inline __m256i odd_bytes(__m256i a) { return _mm256_srai_epi16(a, 8); }
inline __m256i dot_half(__m256i acc, __m256i w, WideWord a) {
  const __m256i w_even = _mm256_and_si256(w, _mm256_set1_epi16(255)), w_odd = _mm256_srli_epi16(w, 8);
  return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(w_even, a.even), _mm256_madd_epi16(w_odd, a.odd)));
}
inline I dot_wide(I acc, W w, WideWord a) {
  acc = {dot_half(acc.lo, w.lo, a), dot_half(acc.hi, w.hi, a)};
  asm("" : "+x"(acc.lo), "+x"(acc.hi));  // gcc would make many products first, and keep them in memory
  return acc;
}
// acc[lane] += sum of 4 products of the lane's unsigned bytes of w with those of the word
inline I dot_word(I acc, W w, Word a) { return dot_wide(acc, w, {even_bytes(a), odd_bytes(a)}); }
