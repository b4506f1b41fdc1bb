#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace interlingua {

SamplerState::SamplerState(SamplingParams p, const int32_t* prompt, size_t n) : params(std::move(p)) {
  if (has_penalties())
    for (size_t i = 0; i < n; i++) count(prompt[i], false);
  length = int64_t(n);
  if (n) last = prompt[n - 1];
}

bool SamplerState::has_penalties() const {
  return params.repetition_penalty != 1.0f || params.frequency_penalty != 0.0f || params.presence_penalty != 0.0f;
}

bool SamplerState::changes_logits() const {
  return has_penalties() || !params.logit_bias.empty() || generated < params.min_new_tokens || params.watermark_gamma > 0.0;
}

void SamplerState::count(int32_t id, bool output) {
  const auto [at, fresh] = index_.try_emplace(id, int32_t(seen.size()));
  if (fresh) seen.push_back({id, 0, 0});
  seen[at->second].total++;
  seen[at->second].output += output;
}

void SamplerState::append(int32_t id) {
  if (has_penalties()) count(id, true);
  length++;
  generated++;
  last = id;
}

double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t c[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
  uint32_t k[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ k[0], uint32_t(b), uint32_t(a >> 32) ^ c[3] ^ k[1], uint32_t(a)};
    std::memcpy(c, next, sizeof c);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return double((uint64_t(c[0]) << 32 | c[1]) >> 11) * 0x1.0p-53;
}

namespace {

float raw_logprob(float logit, const VocabStats& stats) {
  return float(double(logit) - double(stats.max) - std::log(double(stats.exp_sum)));
}

// A float as an unsigned number of the same order.
uint32_t ordered(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// The k-th largest of x[0..n): radix selection from the top bits down, one full pass and then the survivors of a bucket.
float kth_largest(const float* x, int32_t n, int32_t k) {
  std::vector<uint32_t> keys;
  uint32_t prefix = 0;
  {
    std::vector<int32_t> histogram(2048, 0);
    for (int32_t i = 0; i < n; i++) histogram[ordered(x[i]) >> 21]++;
    int32_t bucket = 2047;
    while (histogram[bucket] < k) k -= histogram[bucket--];
    prefix = uint32_t(bucket);
    keys.reserve(size_t(histogram[bucket]));
    for (int32_t i = 0; i < n; i++)
      if (ordered(x[i]) >> 21 == prefix) keys.push_back(ordered(x[i]));
  }
  std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end(), std::greater<>());
  const uint32_t key = keys[size_t(k - 1)];
  const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Scores are looked at by strides: the 32 of a chunk of 512 that lie 16 apart, so that their largest are found in vectors.
constexpr int32_t kStride = 16, kChunk = 512;

// Calls look(i) for each score i of a stride.
template <class Look>
void over_stride(int32_t stride, int32_t n, Look look) {
  const int32_t first = stride / kStride * kChunk;
  for (int32_t i = first + stride % kStride; i < std::min(n, first + kChunk); i += kStride) look(i);
}

// The largest score of each stride: out[strides].
void find_peaks(const float* x, int32_t n, std::vector<float>& out) {
  out.resize(size_t((n + kChunk - 1) / kChunk * kStride));
  for (int32_t first = 0; first < n; first += kChunk) {
    float* peaks = out.data() + first / kChunk * kStride;
    const int32_t whole = first + (std::min(n - first, kChunk) / kStride * kStride);
    float largest[kStride];
    std::fill_n(largest, kStride, -std::numeric_limits<float>::infinity());
    for (int32_t i = first; i < whole; i += kStride)
      for (int32_t j = 0; j < kStride; j++) largest[j] = x[i + j] > largest[j] ? x[i + j] : largest[j];
    for (int32_t i = whole; i < std::min(n, first + kChunk); i++) largest[i - whole] = std::max(largest[i - whole], x[i]);
    std::copy_n(largest, kStride, peaks);
  }
}

// The lowest id of the largest score.
int32_t first_largest(const float* x, int32_t n, const std::vector<float>& peaks) {
  const float max = *std::max_element(peaks.begin(), peaks.end());
  int32_t id = n;
  for (size_t stride = 0; stride < peaks.size(); stride++)
    if (peaks[stride] == max) over_stride(int32_t(stride), n, [&](int32_t i) { id = x[i] == max ? std::min(id, i) : id; });
  return id;
}

// In order, the ids of all scores that are not below the k-th largest.
void find_top(const float* x, int32_t n, int32_t k, const std::vector<float>& peaks, SamplerScratch& scratch,
              std::vector<int32_t>& ids) {
  ids.clear();
  if (size_t(k) <= peaks.size() / 4) {  // k strides reach up to `bound`, so the k-th largest score does not lie below it
    std::vector<float>& values = scratch.values;
    values = peaks;
    std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
    const float bound = values[size_t(k - 1)];
    for (size_t stride = 0; stride < peaks.size(); stride++)
      if (peaks[stride] >= bound)
        over_stride(int32_t(stride), n, [&](int32_t i) {
          if (x[i] >= bound) ids.push_back(i);
        });
    if (ids.size() <= size_t(n) / 8) {
      values.resize(ids.size());
      std::transform(ids.begin(), ids.end(), values.begin(), [&](int32_t i) { return x[i]; });
      std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
      const float limit = values[size_t(k - 1)];
      ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t i) { return x[i] < limit; }), ids.end());
      std::sort(ids.begin(), ids.end());
      return;
    }
    ids.clear();  // nearly all are equal
  }
  const float limit = kth_largest(x, n, k);
  for (int32_t i = 0; i < n; i++)
    if (x[i] >= limit) ids.push_back(i);
}

// Candidates (score, id) in id order with their unnormalised probabilities.
struct Candidates {
  std::vector<int32_t>& ids;
  std::vector<float>& p;

  // Sums are made of blocks, each in four chains: one chain over a vocabulary would wait for its own additions.
  static constexpr size_t kBlock = 512;

  double block_sum(size_t first) const {
    const size_t end = std::min(first + kBlock, p.size());
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    size_t i = first;
    for (; i + 4 <= end; i += 4)
      for (size_t j = 0; j < 4; j++) sums[j] += double(p[i + j]);
    for (; i < end; i++) sums[0] += double(p[i]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }

  double total() const {
    double sum = 0.0;
    for (size_t first = 0; first < p.size(); first += kBlock) sum += block_sum(first);
    return sum;
  }

  template <class Keep>
  void filter(Keep keep) {
    size_t out = 0;
    for (size_t i = 0; i < ids.size(); i++)
      if (keep(i)) {
        ids[out] = ids[i];
        p[out] = p[i];
        out++;
      }
    ids.resize(out);
    p.resize(out);
  }

  // Keeps the candidates with the smallest `rank` whose mass first reaches `share` of the total; equal ranks stay
  // together. At least one is kept.
  void keep_mass(const std::vector<float>& rank, double share) {
    const double target = share * total();
    // Twice into buckets by 12 bits of the rank, then an exact walk inside the bucket where the target is reached.
    double before = 0.0;
    uint32_t prefix = 0;
    for (const int shift : {20, 8}) {
      std::vector<double> mass(4096, 0.0);
      for (size_t i = 0; i < ids.size(); i++) {
        const uint32_t key = ordered(rank[i]) >> shift;
        if (shift == 20 || key >> 12 == prefix) mass[key & 4095] += double(p[i]);
      }
      uint32_t bucket = 0;  // the first that reaches the target; should rounding let none, the last
      double reached = before;
      for (uint32_t next = 0; next < 4096; next++) {
        if (mass[next] <= 0.0) continue;
        bucket = next;
        before = reached;
        reached += mass[next];
        if (reached >= target) break;
      }
      prefix = prefix << 12 | bucket;
    }
    std::vector<std::pair<float, float>> inside;
    for (size_t i = 0; i < ids.size(); i++)
      if (ordered(rank[i]) >> 8 == prefix) inside.emplace_back(rank[i], p[i]);
    std::sort(inside.begin(), inside.end());
    float limit = inside.back().first;
    for (const auto& [r, mass_of_one] : inside) {
      before += double(mass_of_one);
      if (before >= target) {
        limit = r;
        break;
      }
    }
    filter([&](size_t i) { return rank[i] <= limit; });
  }
};

// What comes before the temperature; every score stays within the limit. Throws std::out_of_range for an id that the
// model does not have.
void change_logits(float* logits, int32_t vocab, const SamplerState& state, GreenLists& lists) {
  const SamplingParams& params = state.params;
  if (params.watermark_gamma > 0.0)
    add_to_green(logits, *lists.get(state.last, params.watermark_gamma), params.watermark_delta);
  const auto score = [&](int32_t id) -> float& {
    if (id < 0 || id >= vocab) throw std::out_of_range("sampler: no such id");
    return logits[id];
  };
  const float repetition = std::max(params.repetition_penalty, 1e-37f);  // a subnormal counts as 0 here, and 0 / 0 is NaN
  for (const auto& seen : state.seen) {
    float& s = score(seen.id);
    if (repetition != 1.0f) s = s < 0.0f ? s * repetition : s / repetition;
    if (params.frequency_over_output)
      s -= params.frequency_penalty * float(seen.output);
    else if (params.frequency_penalty != 0.0f)
      s -= params.frequency_penalty * float(seen.total) / float(state.length);
    if (seen.output) s -= params.presence_penalty;
    s = std::clamp(s, -kLogitLimit, kLogitLimit);
  }
  for (const auto& [id, bias] : params.logit_bias) score(id) = std::clamp(score(id) + bias, -kLogitLimit, kLogitLimit);
  if (state.generated < params.min_new_tokens)
    for (const int32_t id : params.suppressed) score(id) = -kLogitLimit;
}

// Below what min_new_tokens suppresses, and no lower than what a search for the largest begins with.
constexpr float kForbidden = -3.0e38f;

void apply_mask(float* logits, int32_t vocab, int32_t padded, const uint32_t* allowed) {
  for (int32_t first = 0; first < vocab; first += 32) {
    const uint32_t word = allowed[first / 32];
    const int32_t count = std::min(32, vocab - first);
    if (word == ~0u) continue;
    if (word == 0)
      std::fill_n(logits + first, count, kForbidden);
    else
      for (int32_t i = 0; i < count; i++) logits[first + i] = word >> i & 1 ? logits[first + i] : kForbidden;
  }
  std::fill(logits + vocab, logits + padded, kForbidden);
}

// Temperature and filters: what may be drawn.
Candidates candidates(const KernelTable& kernels, const float* logits, int32_t vocab, int32_t padded,
                      const SamplingParams& params, SamplerScratch& scratch) {
  Candidates c{scratch.ids, scratch.probabilities};
  find_peaks(logits, vocab, scratch.peaks);
  const float max = *std::max_element(scratch.peaks.begin(), scratch.peaks.end());
  const float inverse = std::min(float(1.0 / double(params.temperature)), 2.0e38f);  // and finite as a power of two
  if (params.top_k > 0 && params.top_k < vocab) {  // ties with the k-th stay
    find_top(logits, vocab, params.top_k, scratch.peaks, scratch, c.ids);
    c.p.assign((c.ids.size() + kLanes - 1) / kLanes * kLanes, max);
    std::transform(c.ids.begin(), c.ids.end(), c.p.begin(), [&](int32_t id) { return logits[id]; });
    kernels.exp_scaled(c.p.data(), int32_t(c.p.size()), max, inverse, c.p.data());
  } else {
    c.p.resize(size_t(padded));
    kernels.exp_scaled(logits, padded, max, inverse, c.p.data());
    c.ids.resize(size_t(vocab));
    std::iota(c.ids.begin(), c.ids.end(), 0);
  }
  c.p.resize(c.ids.size());
  if (params.top_p < 1.0f) {
    std::vector<float> rank(c.p.size());
    for (size_t i = 0; i < rank.size(); i++) rank[i] = -c.p[i];
    c.keep_mass(rank, double(params.top_p));
  }
  if (params.typical_p < 1.0f) {  // Meister et al. 2023: nearest to the entropy first
    // With p = w / sum(w), |-ln p - H(p)| = |-ln w - sum(p * -ln w)|, and -ln w is how far the score is below the best.
    std::vector<double> surprise(c.p.size());
    double entropy = 0.0;
    for (size_t i = 0; i < surprise.size(); i++)
      if (c.p[i] > 0.0f) {
        surprise[i] = (double(max) - double(logits[c.ids[i]])) * double(inverse);
        entropy += double(c.p[i]) * surprise[i];
      }
    entropy /= c.total();
    std::vector<float> rank(c.p.size());
    for (size_t i = 0; i < rank.size(); i++)
      rank[i] = c.p[i] > 0.0f ? float(std::fabs(surprise[i] - entropy)) : 3.0e38f;
    c.keep_mass(rank, double(params.typical_p));
  }
  if (params.min_p > 0.0f) {
    const float peak = *std::max_element(c.p.begin(), c.p.end());
    c.filter([&](size_t i) { return c.p[i] >= params.min_p * peak; });
  }
  return c;
}

int32_t draw(const Candidates& c, uint64_t seed, uint64_t position) {
  const double target = philox_uniform(seed, position) * c.total();
  double sum = 0.0;
  size_t first = 0;
  for (; first + Candidates::kBlock < c.ids.size(); first += Candidates::kBlock) {
    const double block = c.block_sum(first);
    if (sum + block > target) break;
    sum += block;
  }
  for (size_t i = first; i < c.ids.size(); i++) {
    sum += double(c.p[i]);
    if (c.p[i] > 0.0f && sum > target) return c.ids[i];
  }
  // Rounding has put the target at the very end, once in 2^50 draws or so.
  return c.ids[size_t(std::max_element(c.p.begin(), c.p.end()) - c.p.begin())];
}

std::vector<std::pair<int32_t, float>> best(const float* logits, int32_t vocab, const VocabStats& stats, int32_t n,
                                            SamplerScratch& scratch) {
  find_peaks(logits, vocab, scratch.peaks);
  find_top(logits, vocab, std::min(n, vocab), scratch.peaks, scratch, scratch.ids);
  std::vector<std::pair<int32_t, float>> found;
  for (const int32_t id : scratch.ids) found.emplace_back(id, logits[id]);
  std::sort(found.begin(), found.end(),
            [](auto& a, auto& b) { return a.second != b.second ? a.second > b.second : a.first < b.first; });
  for (auto& [id, value] : found) value = raw_logprob(value, stats);
  return found;
}

}  // namespace

Choice choose_token(const KernelTable& kernels, float* logits, int32_t vocab, int32_t padded, SamplerState& state,
                    const uint32_t* allowed, uint64_t position, SamplerScratch& scratch, GreenLists& lists) {
  const SamplingParams& params = state.params;
  const VocabStats stats = kernels.vocab_stats(logits, padded);
  if (!stats.usable) return {kUnusable, 0.0f};
  if (params.top_n > 0) state.top = best(logits, vocab, stats, params.top_n, scratch);
  const bool changed = state.changes_logits();
  if (!changed && !allowed && !params.do_sample) return {stats.argmax, raw_logprob(stats.max, stats)};
  const float* raw = logits;
  if (changed) {  // the raw value of the chosen token is needed afterwards
    scratch.raw.assign(logits, logits + vocab);
    raw = scratch.raw.data();
    change_logits(logits, vocab, state, lists);
  }
  if (allowed) apply_mask(logits, vocab, padded, allowed);
  if (params.do_sample) {
    const int32_t id = draw(candidates(kernels, logits, vocab, padded, params, scratch), params.seed, position);
    return {id, raw_logprob(raw[id], stats)};
  }
  find_peaks(logits, vocab, scratch.peaks);
  const int32_t id = first_largest(logits, vocab, scratch.peaks);
  return {id, raw_logprob(raw[id], stats)};
}

void sampling_distribution(const KernelTable& kernels, float* logits, int32_t vocab, int32_t padded,
                           const SamplerState& state, SamplerScratch& scratch, GreenLists& lists, double* out) {
  change_logits(logits, vocab, state, lists);
  const Candidates c = candidates(kernels, logits, vocab, padded, state.params, scratch);
  const double total = c.total();
  std::fill(out, out + vocab, 0.0);
  for (size_t i = 0; i < c.ids.size(); i++) out[c.ids[i]] = double(c.p[i]) / total;
}

Choice score_token(const KernelTable& kernels, const float* logits, int32_t padded, int32_t id) {
  const VocabStats stats = kernels.vocab_stats(logits, padded);
  if (!stats.usable) return {kUnusable, 0.0f};
  return {id, raw_logprob(logits[id], stats)};
}

}  // namespace interlingua
