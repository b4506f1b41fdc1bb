// Exact sums of products over a group of inputs, for R rows and weights of kBits. Included after a tier's vector type. A
// tier that multiplies otherwise than four bytes at a time specialises them.

template <int kBits>
struct TermSum {
  I sum = int_splat(0);

  void take(const W& w, const Word& inputs) { sum = dot_word(sum, w, inputs); }
  I total() const { return sum; }
};

struct TwoWords {  // four inputs in every lane
  Word high, low;  // of one term: the low one is not used
};

template <int R, bool kTwoTerms, int kBits>
struct GroupInputs {
  const int8_t *high, *low;  // rows lie kGroup apart

  // Inputs i .. i + 4 of a row, for kUses products.
  template <int kUses>
  TwoWords word(int row, int i) const {
    TwoWords word{load_word<kUses>(high + row * kGroup + i), {}};
    if (kTwoTerms) word.low = load_word<kUses>(low + row * kGroup + i);
    return word;
  }
};

template <bool kTwoTerms, int kBits>
struct GroupSum {
  TermSum<kBits> high, low;

  void take(const W& w, const TwoWords& inputs) {
    high.take(w, inputs.high);
    if (kTwoTerms) low.take(w, inputs.low);
  }
  I total() const { return kTwoTerms ? int_add(int_shift_left_8(high.total()), low.total()) : high.total(); }
};
