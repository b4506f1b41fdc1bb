// Sums of products in AVX2. Included after sums.inl.

// VPMADDUBSW adds two products with nibbles, and 16 bits hold one of its results for each of a group's eight words: no more
// than 8 * 2 * 15 * 128 = 30,720.
template <>
struct TermSum<4> {
  __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();

  void take(W w, Word inputs) {
    lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(w.lo, inputs));
    hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(w.hi, inputs));
    asm("" : "+x"(lo), "+x"(hi));  // gcc would make many products first, and keep them in memory
  }
  I total() const {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(lo, ones), _mm256_madd_epi16(hi, ones)};
  }
};

// For bytes, inputs are widened once a group. VPMADDWD takes 16 bits, so that two terms are one integer.
template <int R, bool kTwoTerms>
struct GroupInputs<R, kTwoTerms, 8> {
  alignas(32) int16_t even[R][kGroup / 2], odd[R][kGroup / 2];

  GroupInputs(const int8_t* high, const int8_t* low) {
    for (int r = 0; r < R; r++) {
      const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(high + r * kGroup));
      __m256i e = even_bytes(h), o = odd_bytes(h);
      if (kTwoTerms) {
        const __m256i l = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(low + r * kGroup));
        e = _mm256_add_epi16(_mm256_slli_epi16(h, 8), even_bytes(l));
        o = _mm256_add_epi16(_mm256_slli_epi16(o, 8), odd_bytes(l));
      }
      _mm256_store_si256(reinterpret_cast<__m256i*>(even[r]), e);
      _mm256_store_si256(reinterpret_cast<__m256i*>(odd[r]), o);
    }
    asm("" : "+m"(even), "+m"(odd));  // gcc would shift words out of registers, which takes longer than to read them
  }
  template <int kUses>
  WideWord word(int row, int i) const {
    int32_t e, o;
    __builtin_memcpy(&e, even[row] + i / 2, 4);
    __builtin_memcpy(&o, odd[row] + i / 2, 4);
    return {_mm256_set1_epi32(e), _mm256_set1_epi32(o)};
  }
};
template <bool kTwoTerms>
struct GroupSum<kTwoTerms, 8> {
  I sum = int_splat(0);

  void take(W w, WideWord inputs) { sum = dot_wide(sum, w, inputs); }
  I total() const { return sum; }
};
