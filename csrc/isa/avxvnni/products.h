// Integer products of AVX-VNNI. Included after AVX2's vec.h.

// Assembly, because gcc 12 copies the intrinsic's sums from register to register (avx512/vec.h).
inline __m256i dot_half(__m256i acc, __m256i w, Word a) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(a));
  return acc;
}
inline I dot_word(I acc, W w, Word a) { return {dot_half(acc.lo, w.lo, a), dot_half(acc.hi, w.hi, a)}; }
inline I dot_u8s8(I acc, W w, const int8_t* a) { return dot_word(acc, w, load_word<1>(a)); }
using NibbleSum = I;
inline NibbleSum dot_nibbles(NibbleSum acc, W w, Word a) { return dot_word(acc, w, a); }
inline I total(NibbleSum sum) { return sum; }
