// Products of four bytes in AVX-VNNI. Included after AVX2's vec.h.

// Assembly, because gcc 12 copies the intrinsic's sums from register to register (avx512/vec.h).
inline __m256i dot_half(__m256i acc, __m256i w, Word a) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(a));
  return acc;
}
// acc[lane] += sum of 4 products of the lane's unsigned bytes of w with those of the word
inline I dot_word(I acc, W w, Word a) { return {dot_half(acc.lo, w.lo, a), dot_half(acc.hi, w.hi, a)}; }
