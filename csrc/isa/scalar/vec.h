// 16 lanes in plain arrays: the reference that every other tier must equal bit for bit. Built without
// auto-vectorisation and for the baseline of the architecture. Included inside an anonymous namespace, after <cmath>.

struct F {
  float v[kLanes];
};
struct I {
  int32_t v[kLanes];
};
struct W {
  uint8_t v[4 * kLanes];
};

#define LANES(T, expression)                        \
  T out;                                            \
  for (int i = 0; i < kLanes; i++) out.v[i] = expression; \
  return out

inline F load(const float* p) { LANES(F, p[i]); }
inline void store(float* p, const F& v) {
  for (int i = 0; i < kLanes; i++) p[i] = v.v[i];
}
inline F splat(float x) { LANES(F, x); }
inline F add(const F& a, const F& b) { LANES(F, a.v[i] + b.v[i]); }
inline F sub(const F& a, const F& b) { LANES(F, a.v[i] - b.v[i]); }
inline F mul(const F& a, const F& b) { LANES(F, a.v[i] * b.v[i]); }
inline F div(const F& a, const F& b) { LANES(F, a.v[i] / b.v[i]); }
inline F fma(const F& a, const F& b, const F& c) { LANES(F, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
inline F fmax(const F& a, const F& b) { LANES(F, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline F fmin(const F& a, const F& b) { LANES(F, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
inline F absolute(const F& a) { LANES(F, __builtin_fabsf(a.v[i])); }
inline F round_nearest(const F& a) { LANES(F, __builtin_rintf(a.v[i])); }
inline F zero_below(const F& x, float limit, const F& y) { LANES(F, x.v[i] >= limit ? y.v[i] : 0.0f); }
inline float power_of_two_lane(float n) {
  const uint32_t bits = uint32_t(int32_t(n) + 127) << 23;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
inline float raise_exponent_lane(float x, float n) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits += uint32_t(int32_t(n)) << 23;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
// x * 2^n for whole n, by its exponent: x may not become subnormal, but 1 * 2^-127 is 0
inline F raise_exponent(const F& x, const F& n) { LANES(F, raise_exponent_lane(x.v[i], n.v[i])); }
inline F power_of_two(const F& n) { LANES(F, power_of_two_lane(n.v[i])); }
inline float square_root(float x) { return __builtin_sqrtf(x); }

inline I int_splat(int32_t x) { LANES(I, x); }
// As vectors do: what an input that is not finite makes wraps around.
inline int32_t wrap(int64_t x) { return int32_t(uint32_t(x)); }
inline I int_add(const I& a, const I& b) { LANES(I, wrap(int64_t(a.v[i]) + b.v[i])); }
inline I int_sub(const I& a, const I& b) { LANES(I, wrap(int64_t(a.v[i]) - b.v[i])); }
inline I int_max(const I& a, const I& b) { LANES(I, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
inline int32_t int_max_lanes(const I& a) {
  int32_t most = a.v[0];
  for (int i = 1; i < kLanes; i++) most = a.v[i] > most ? a.v[i] : most;
  return most;
}
inline I magnitude_bits(const F& a) {
  I bits;
  __builtin_memcpy(bits.v, a.v, sizeof bits.v);
  LANES(I, bits.v[i] & 0x7fffffff);
}
inline F as_float(const I& bits) {
  F x;
  __builtin_memcpy(x.v, bits.v, sizeof x.v);
  return x;
}
// 0 where x < limit, else y; NaN is not less
inline F zero_if_less(const F& x, float limit, const F& y) { LANES(F, x.v[i] < limit ? 0.0f : y.v[i]); }
inline I int_shift_left_8(const I& a) { LANES(I, a.v[i] * 256); }
inline I int_load(const int32_t* p) { LANES(I, p[i]); }
inline void int_store(int32_t* p, const I& v) {
  for (int i = 0; i < kLanes; i++) p[i] = v.v[i];
}
inline I int_shift_right_8(const I& a) { LANES(I, a.v[i] >> 8); }
inline int32_t int_sum_lanes(const I& a) {
  int64_t sum = 0;
  for (int i = 0; i < kLanes; i++) sum += a.v[i];
  return wrap(sum);
}
inline void int_store_bytes(int8_t* p, const I& v) {
  for (int i = 0; i < kLanes; i++) p[i] = int8_t(v.v[i]);
}
inline void int_store_low_bytes(int8_t* p, const I& v) { int_store_bytes(p, v); }  // v mod 256
inline F to_float(const I& a) { LANES(F, float(a.v[i])); }
// What no int32 holds becomes the least one, as in vectors.
inline int32_t to_int_lane(float x) { return __builtin_fabsf(x) < 2147483648.0f ? int32_t(__builtin_rintf(x)) : INT32_MIN; }
inline I to_int(const F& a) { LANES(I, to_int_lane(a.v[i])); }
inline void keep_greater(F& best, I& where, const F& x, int32_t base) {
  for (int i = 0; i < kLanes; i++)
    if (x.v[i] > best.v[i]) {
      best.v[i] = x.v[i];
      where.v[i] = base;
    }
}

inline W load_bytes(const uint8_t* p) {
  W w;
  __builtin_memcpy(w.v, p, sizeof w.v);
  return w;
}
inline W low_nibbles(const W& w) {
  W out;
  for (int i = 0; i < 4 * kLanes; i++) out.v[i] = w.v[i] & 15;
  return out;
}
inline W high_nibbles(const W& w) {
  W out;
  for (int i = 0; i < 4 * kLanes; i++) out.v[i] = w.v[i] >> 4;
  return out;
}
inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  float x;
  if (exponent == 0) {  // zero and subnormals: fraction * 2^-24, exact
    x = float(fraction) * 5.9604644775390625e-8f;
    return sign ? -x : x;
  }
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
inline F load_half(const uint16_t* p) { LANES(F, half_to_float(p[i])); }
inline uint16_t float_to_half(float x) {  // |x| <= 65504, to nearest even
  uint32_t u;
  __builtin_memcpy(&u, &x, 4);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  const float magnitude = __builtin_fabsf(x);
  if (magnitude < 6.103515625e-05f) return sign | uint16_t(__builtin_rintf(magnitude * 16777216.0f));
  u &= 0x7fffffffu;
  u += 0xfff + ((u >> 13) & 1);
  return sign | uint16_t((u >> 13) - (112u << 10));
}
inline void store_half(uint16_t* p, const F& v) {
  for (int i = 0; i < kLanes; i++) p[i] = float_to_half(v.v[i]);
}
inline float bf16_lane(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  const uint32_t bits = uint32_t(h) << 16;
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
inline F even_bf16(const W& w) { LANES(F, bf16_lane(w.v + 4 * i)); }
inline F odd_bf16(const W& w) { LANES(F, bf16_lane(w.v + 4 * i + 2)); }
using Word = const int8_t*;
template <int kUses>
inline Word load_word(const int8_t* a) {
  return a;
}
inline I dot_word(const I& acc, const W& w, Word a) {
  LANES(I, acc.v[i] + w.v[4 * i] * a[0] + w.v[4 * i + 1] * a[1] + w.v[4 * i + 2] * a[2] + w.v[4 * i + 3] * a[3]);
}
inline void prefetch(const void*) {}
inline void prefetch_to_l2(const void*) {}

#undef LANES

// Lanes are joined in halves: i with i + 8, then i + 4, i + 2, i + 1.
inline float sum_lanes(F v) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) v.v[i] = v.v[i] + v.v[i + width];
  return v.v[0];
}
inline float max_lanes(F v) {
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) v.v[i] = v.v[i] > v.v[i + width] ? v.v[i] : v.v[i + width];
  return v.v[0];
}

#include "generic/each_lane.inl"
