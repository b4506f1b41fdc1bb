#include "model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

#include "cpu.h"

namespace interlingua {
namespace {

constexpr int32_t kMostPartRows = 256;  // rows whose inputs fit into a core's cache, of layers of some 2,000
constexpr int32_t kLogitChunk = 32;  // rows of logits held at once
// Between rows of logits: at a distance of a power of two all rows' lines would fall into the same sets of the caches.
constexpr int32_t kLogitGap = 272;
constexpr int32_t kRowPad = 16;      // activation buffers reach to a whole tile of rows

int32_t pad(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1.0p-24f;
  const uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | fraction << 13;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

uint16_t float_to_half(float x) {  // round to nearest even
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  const float magnitude = std::fabs(x);
  if (!(magnitude < 65520.0f)) return sign | 0x7c00;
  if (magnitude < 0x1.0p-14f) return sign | uint16_t(std::lrintf(magnitude * 0x1.0p24f));
  std::memcpy(&u, &magnitude, 4);
  u += 0xfff + ((u >> 13) & 1);
  return sign | uint16_t((u >> 13) - (112 << 10));
}

float bf16_to_float(uint16_t h) {
  const uint32_t u = uint32_t(h) << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

uint16_t float_to_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (std::isnan(x)) return uint16_t((u >> 16) | 64);
  return uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

uint16_t read_u16(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return h;
}

int64_t row_bytes(SourceFormat format, int32_t k) {
  switch (format) {
    case SourceFormat::kQ4_0: return int64_t(k) / 32 * 18;
    case SourceFormat::kQ4_1: return int64_t(k) / 32 * 20;
    case SourceFormat::kQ8_0: return int64_t(k) / 32 * 34;
    case SourceFormat::kF32: return int64_t(k) * 4;
    default: return int64_t(k) * 2;
  }
}

float plain_value(SourceFormat format, const uint8_t* row, int32_t i) {
  float x;
  switch (format) {
    case SourceFormat::kF32: std::memcpy(&x, row + int64_t(i) * 4, 4); return x;
    case SourceFormat::kF16: return half_to_float(read_u16(row + int64_t(i) * 2));
    default: return bf16_to_float(read_u16(row + int64_t(i) * 2));
  }
}

// Where output `o` of a packed weight lives: its 16-block and its lane.
struct Lane {
  uint8_t* quants;
  uint16_t* scales;
  int lane;
};

void put_scale(uint8_t* scales, int lane, int index, uint16_t half) {
  std::memcpy(scales + (index * kLanes + lane) * 2, &half, 2);
}

}  // namespace

void pack_row(const PackedWeight& weight, SourceFormat format, const uint8_t* source, int32_t output) {
  const int32_t groups = weight.k / kGroup;
  const int64_t block = int64_t(output / kLanes) * groups;
  const int lane = output % kLanes;
  if (weight.kind == WeightKind::kBf16) {
    for (int32_t i = 0; i < weight.k; i++) {
      const uint16_t h = format == SourceFormat::kBf16 ? read_u16(source + int64_t(i) * 2)
                                                       : float_to_bf16(plain_value(format, source, i));
      uint8_t* pair = weight.quants.data() + (int64_t(output / kLanes) * weight.k / 2 + i / 2) * 64;
      std::memcpy(pair + lane * 4 + i % 2 * 2, &h, 2);
    }
    return;
  }
  for (int32_t g = 0; g < groups; g++) {
    uint8_t q[kGroup];
    if (weight.kind == WeightKind::kInt4) {
      uint16_t d, m;
      if (format == SourceFormat::kQ4_1 || format == SourceFormat::kQ4_0) {
        const uint8_t* p = source + int64_t(g) * (format == SourceFormat::kQ4_1 ? 20 : 18);
        d = read_u16(p);
        // Q4_0 is d * (q - 8): a minimum of -8d, a power of two away and so exact in fp16.
        m = format == SourceFormat::kQ4_1 ? read_u16(p + 2) : float_to_half(-8.0f * half_to_float(d));
        const uint8_t* nibbles = p + (format == SourceFormat::kQ4_1 ? 4 : 2);
        for (int i = 0; i < 16; i++) q[i] = nibbles[i] & 15, q[i + 16] = nibbles[i] >> 4;
      } else {
        float low = plain_value(format, source, g * kGroup), high = low;
        for (int i = 1; i < kGroup && !std::isnan(low); i++) {  // NaN stays, and what is multiplied with it is NaN
          const float x = plain_value(format, source, g * kGroup + i);
          if (!(x >= low)) low = x;
          if (!(x <= high)) high = x;
        }
        d = float_to_half((high - low) / 15.0f);
        m = float_to_half(low);
        const float step = half_to_float(d), base = half_to_float(m);
        for (int i = 0; i < kGroup; i++) {
          const float x = plain_value(format, source, g * kGroup + i);
          q[i] = uint8_t(step > 0.0f ? std::clamp(std::lrintf((x - base) / step), 0L, 15L) : 0);
        }
      }
      uint8_t* out = weight.quants.data() + (block + g) * 256;
      for (int i = 0; i < 16; i++) out[i / 4 * 64 + lane * 4 + i % 4] = uint8_t(q[i] | q[i + 16] << 4);
      uint8_t* scales = weight.scales.data() + (block + g) * 64;
      put_scale(scales, lane, 0, d);
      put_scale(scales, lane, 1, m);
    } else {
      uint16_t d;
      if (format == SourceFormat::kQ8_0) {
        const uint8_t* p = source + int64_t(g) * 34;
        d = read_u16(p);
        for (int i = 0; i < kGroup; i++) q[i] = uint8_t(int8_t(p[2 + i]) + 128);
      } else {
        float peak = 0.0f;
        for (int i = 0; i < kGroup && !std::isnan(peak); i++) {  // as above
          const float x = std::fabs(plain_value(format, source, g * kGroup + i));
          if (!(x <= peak)) peak = x;
        }
        d = float_to_half(peak / 127.0f);
        const float step = half_to_float(d);
        for (int i = 0; i < kGroup; i++) {
          const float x = plain_value(format, source, g * kGroup + i);
          q[i] = uint8_t((step > 0.0f ? std::clamp(std::lrintf(x / step), -127L, 127L) : 0) + 128);
        }
      }
      uint8_t* out = weight.quants.data() + (block + g) * 512;
      for (int i = 0; i < kGroup; i++) out[i / 4 * 64 + lane * 4 + i % 4] = q[i];
      put_scale(weight.scales.data() + (block + g) * 32, lane, 0, d);
    }
  }
}

namespace {

// Output `o` of a packed weight as float32, for embeddings.
void unpack_row(const PackedWeight& weight, int32_t output, float factor, float* out) {
  const int32_t groups = weight.k / kGroup;
  const int64_t block = int64_t(output / kLanes) * groups;
  const int lane = output % kLanes;
  for (int32_t g = 0; g < groups; g++) {
    float* x = out + g * kGroup;
    if (weight.kind == WeightKind::kBf16) {
      const uint8_t* p = weight.quants.data() + (block + g) * 1024;
      for (int i = 0; i < kGroup; i++) x[i] = bf16_to_float(read_u16(p + i / 2 * 64 + lane * 4 + i % 2 * 2));
    } else if (weight.kind == WeightKind::kInt8) {
      const uint8_t* p = weight.quants.data() + (block + g) * 512;
      const float d = half_to_float(read_u16(weight.scales.data() + (block + g) * 32 + lane * 2));
      for (int i = 0; i < kGroup; i++) x[i] = d * float(int(p[i / 4 * 64 + lane * 4 + i % 4]) - 128);
    } else {
      const uint8_t* p = weight.quants.data() + (block + g) * 256;
      const uint8_t* s = weight.scales.data() + (block + g) * 64;
      const float d = half_to_float(read_u16(s + lane * 2)), m = half_to_float(read_u16(s + 32 + lane * 2));
      for (int i = 0; i < 16; i++) {
        const uint8_t byte = p[i / 4 * 64 + lane * 4 + i % 4];
        x[i] = d * float(byte & 15) + m;
        x[i + 16] = d * float(byte >> 4) + m;
      }
    }
  }
  if (factor != 1.0f)
    for (int32_t i = 0; i < weight.k; i++) out[i] *= factor;
}

}  // namespace

// --- Buffer ------------------------------------------------------------------------------------------------------------

Buffer::Buffer(size_t bytes) : size_(bytes) {
  if (!bytes) return;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(p);
#ifdef MADV_HUGEPAGE
  if (bytes >= 2 * kLargePage) madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

Buffer::~Buffer() {
  if (data_) munmap(data_, size_);
}

int Buffer::touch(size_t begin, size_t end) const {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
  return madvise(data_ + begin, end - begin, kPopulateWrite) ? errno : 0;
}

Buffer::Buffer(Buffer&& other) noexcept : data_(other.data_), size_(other.size_) {
  other.data_ = nullptr;
  other.size_ = 0;
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Activations Model::ActivationBuffer::view() const {
  return {high.as<int8_t>(),     low.as<int8_t>(),   scale.as<float>(), sum.as<float>(),
          int_sum.as<int32_t>(), half.as<uint16_t>(), rounded.as<float>()};
}

// --- load --------------------------------------------------------------------------------------------------------------

Model::Model(const std::string& isa, int threads, ActivationKind activations, int32_t max_rows,
             const std::vector<NumaNode>& nodes)
    : kernels_(choose_kernels(isa)),
      pool_(threads, nodes),
      lora_(kernels_, pool_),
      activation_kind_(activations),
      max_rows_(pad(max_rows, kRowPad)),
      sampling_(size_t(threads)) {}

PackedWeight make_weight(WeightKind kind, int32_t n, int32_t k) {
  if (n <= 0 || k <= 0 || k % (kind == WeightKind::kBf16 ? kLanes : kGroup))
    throw std::invalid_argument("a weight needs inputs in whole groups of 32, or 16 for bf16");
  const int32_t padded = pad(n, kLanes);
  if (kind == WeightKind::kBf16) return {kind, padded, k, Buffer(size_t(padded) * size_t(k) * 2 + 4096), Buffer()};
  const size_t blocks = size_t(padded / kLanes) * size_t(k / kGroup);
  const size_t quants = kind == WeightKind::kInt4 ? 256 : 512;
  const size_t scales = kind == WeightKind::kInt4 ? 64 : kind == WeightKind::kInt8 ? 32 : 0;
  return {kind, padded, k, Buffer(blocks * quants + 4096), Buffer(blocks * scales)};
}

// Output blocks lie on the node whose threads take them (run_linear), whichever thread packs them.
PackedWeight Model::placed_weight(WeightKind kind, int32_t n, int32_t k) const {
  PackedWeight weight = make_weight(kind, n, k);
  pool_.place(weight.quants.data(), weight.quants.size());
  pool_.place(weight.scales.data(), weight.scales.size());
  return weight;
}

int Model::add_weight(WeightKind kind, int32_t n, int32_t k) {
  weights_.push_back(placed_weight(kind, n, k));
  return int(weights_.size()) - 1;
}

void Model::fill_weight(int id, SourceFormat format, const uint8_t* source, size_t bytes, const int32_t* rows, int32_t count) {
  const PackedWeight& weight = weights_.at(size_t(id));
  const bool quantised = format == SourceFormat::kQ4_0 || format == SourceFormat::kQ4_1 || format == SourceFormat::kQ8_0;
  const WeightKind natural = format == SourceFormat::kQ8_0 ? WeightKind::kInt8 : WeightKind::kInt4;
  if (quantised && weight.kind != natural) throw std::invalid_argument("quantised rows keep their own kind");
  const int64_t size = row_bytes(format, weight.k);
  if (bytes != size_t(size) * size_t(count)) throw std::invalid_argument("weight source has the wrong size");
  for (int32_t r = 0; r < count; r++)
    if (rows[r] < 0 || rows[r] >= weight.n) throw std::invalid_argument("weight row out of range");
  const int32_t chunk = 64;
  pool_.run((count + chunk - 1) / chunk, [&](int32_t i, int) {
    for (int32_t r = i * chunk; r < std::min(count, (i + 1) * chunk); r++) pack_row(weight, format, source + r * size, rows[r]);
  });
}

int Model::add_vector(const float* values, size_t count) {
  std::vector<float> v(values, values + count);
  v.resize((count + 15) / 16 * 16, 0.0f);
  vectors_.push_back(std::move(v));
  return int(vectors_.size()) - 1;
}

// `id` < 0 stands for no vector. Vectors are padded to whole lanes.
void Model::expect_vector(int id, int32_t width, const char* what) const {
  if (id >= 0 && vectors_.at(size_t(id)).size() != size_t(pad(width, kLanes)))
    throw std::invalid_argument(std::string(what) + " has the wrong length");
}

void Model::set_kv(KvKind kind, int32_t layers, int32_t blocks, int32_t kv_heads, int32_t head_dim) {
  if (head_dim % kGroup || head_dim > 256) throw std::invalid_argument("head size must be a multiple of 32 up to 256");
  kv_kind_ = kind;
  layers_ = layers;
  blocks_ = blocks;
  kv_heads_ = kv_heads;
  head_dim_ = head_dim;
  kv_ = Buffer(size_t(blocks) * size_t(block_stride()));
  // Which thread reads a sequence changes with the batch. Activations are left to first touch: small, and written anew by
  // every operation.
  pool_.interleave(kv_.data(), kv_.size());
}

size_t Model::touch_kv(size_t begin) {
  // One thread, which leaves the other cores to those who serve. Pages that could not be interleaved over the nodes come
  // from where their first writers run, and that should be all threads.
  const size_t end = std::min(kv_.size(), begin + kLargePage);
  return pool_.memory_error() || kv_.touch(begin, end) ? kv_.size() : end;
}

int Model::add_buffer(int32_t width) { return new_buffer(width, max_rows_); }

int Model::new_buffer(int32_t width, int32_t rows) {
  const int32_t padded = pad(width, kLanes);
  buffers_.push_back({padded, Buffer(size_t(rows) * size_t(padded) * sizeof(float))});
  return int(buffers_.size()) - 1;
}

int Model::add_activations(int32_t width, bool integer, bool bf16) {
  return new_activations(width, integer, bf16, max_rows_);
}

int Model::new_activations(int32_t width, bool integer, bool bf16, int32_t rows) {
  if (width % kGroup) throw std::invalid_argument("activations come in whole groups of 32");
  const size_t values = size_t(rows) * size_t(width), groups = values / kGroup;
  ActivationBuffer b{width, integer, bf16, {}, {}, {}, {}, {}, {}, {}};
  if (integer) {
    b.high = Buffer(values);
    if (activation_kind_ == ActivationKind::kInt16) b.low = Buffer(values);
    b.scale = Buffer(groups * 4);
    b.sum = Buffer(groups * 4);
    b.int_sum = Buffer(groups * 4);
  }
  if (bf16) {
    b.half = Buffer(values * 2);
    b.rounded = Buffer(values * 4);
  }
  activations_.push_back(std::move(b));
  return int(activations_.size()) - 1;
}

size_t Model::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& weight : weights_) bytes += weight.quants.size() + weight.scales.size();
  for (const auto& vector : vectors_) bytes += vector.size() * sizeof(float);
  return bytes;
}

void Model::op_embed(int weight, int out, float scale) {
  Op op{OpKind::kEmbed};
  op.a = weight, op.b = out, op.f = scale;
  ops_.push_back(op);
}

void Model::op_prepare(int in, int norm, float eps, int activations) {
  expect_vector(norm, activations_.at(size_t(activations)).width, "a norm");
  Op op{OpKind::kPrepare};
  op.a = in, op.b = norm, op.c = activations, op.f = eps;
  ops_.push_back(op);
}

int Model::op_linear(int activations, int weight, int out, Epilogue epilogue, int bias, int32_t column) {
  const PackedWeight& w = weights_.at(size_t(weight));
  const ActivationBuffer& in = activations_.at(size_t(activations));
  if (in.width != w.k) throw std::invalid_argument("linear: inputs and weight differ in width");
  if (w.kind == WeightKind::kBf16 ? !in.bf16 : !in.integer) throw std::invalid_argument("linear: inputs lack the needed form");
  if (buffers_.at(size_t(out)).width < column + (epilogue == Epilogue::kSiluGate ? w.n / 2 : w.n))
    throw std::invalid_argument("linear: the output is too narrow");
  if (epilogue == Epilogue::kSiluGate && w.n / kLanes % 2) throw std::invalid_argument("linear: gates and ups come in pairs");
  expect_vector(bias, w.n, "a bias");
  Op op{OpKind::kLinear};
  op.a = activations, op.b = weight, op.c = out, op.d = bias, op.e = column, op.epilogue = epilogue;
  ops_.push_back(op);
  const int number = int(ops_.size()) - 1;
  const auto source = std::find_if(ops_.rbegin(), ops_.rend(), [&](const Op& other) {
    return other.kind == OpKind::kPrepare && other.c == activations;
  });
  if (source != ops_.rend()) source->readers.push_back(number);
  return number;
}

void Model::add_lora(LoraAdapter& adapter, int op, std::vector<int32_t> ranks, std::vector<int32_t> slices, const float* a,
                     size_t a_values, const float* b, size_t b_values) const {
  const Op& linear = ops_.at(size_t(op));
  const bool prepared = std::any_of(ops_.begin(), ops_.end(), [op](const Op& other) {
    return std::find(other.readers.begin(), other.readers.end(), op) != other.readers.end();
  });
  if (linear.kind != OpKind::kLinear || !prepared) throw std::invalid_argument("lora: no linear operation of the program");
  const PackedWeight& weight = weights_[size_t(linear.b)];
  const int32_t parts = int32_t(ranks.size()), highest = parts ? *std::max_element(ranks.begin(), ranks.end()) : 0;
  const int32_t rank = pad(highest, kLanes);
  const bool known = std::all_of(slices.begin(), slices.end(), [&](int32_t part) { return part >= 0 && part < parts; });
  if (highest < 1 || !known || slices.size() != size_t(weight.n / kLanes) ||
      a_values != size_t(parts) * size_t(rank) * size_t(weight.k) || b_values != size_t(weight.n) * size_t(rank))
    throw std::invalid_argument("lora: the matrices do not fit the linear operation");
  LoraLayer layer{std::move(ranks), rank, make_weight(WeightKind::kBf16, parts * rank, weight.k),
                  placed_weight(WeightKind::kBf16, weight.n, rank), std::move(slices)};
  const auto pack = [](const PackedWeight& to, const float* rows) {
    for (int32_t r = 0; r < to.n; r++)
      pack_row(to, SourceFormat::kF32, reinterpret_cast<const uint8_t*>(rows + int64_t(r) * to.k), r);
  };
  pack(layer.a, a);
  pack(layer.b, b);
  adapter.add(op, std::move(layer));
}

void Model::op_rope_store(int qkv, int layer, int32_t heads, int32_t rotary, int cos, int sin) {
  Op op{OpKind::kRopeStore};
  op.a = qkv, op.b = layer, op.c = cos, op.d = sin, op.heads = heads, op.rotary = rotary;
  ops_.push_back(op);
}

void Model::op_attention(int qkv, int out, int layer, int32_t heads, int32_t window, float scale) {
  if (kv_heads_ == 0 || heads % kv_heads_) throw std::invalid_argument("attention: heads and KV heads do not fit");
  if (heads_per_kv_ && heads_per_kv_ != heads / kv_heads_) throw std::invalid_argument("attention: layers differ in heads");
  heads_per_kv_ = heads / kv_heads_;
  windows_ = windows_ || window > 0;
  Op op{OpKind::kAttention};
  op.a = qkv, op.b = out, op.c = layer, op.heads = heads, op.window = window, op.f = scale;
  ops_.push_back(op);
}

void Model::op_narrow(std::vector<int> buffers) {
  for (const int buffer : buffers) buffers_.at(size_t(buffer));
  Op op{OpKind::kNarrow};
  op.buffers = std::move(buffers);
  ops_.push_back(op);
}

void Model::op_logits(int in, int norm, float eps, int weight, int32_t vocab) {
  const PackedWeight& w = weights_.at(size_t(weight));
  logits_ = Buffer(size_t(kLogitChunk) * size_t(w.n + kLogitGap) * sizeof(float));
  const bool bf16 = w.kind == WeightKind::kBf16;
  expect_vector(norm, w.k, "the final norm");
  logits_activations_ = new_activations(w.k, !bf16, bf16, pad(kLogitChunk, kRowPad));
  logits_buffer_ = new_buffer(w.k, kLogitChunk);
  Op op{OpKind::kLogits};
  op.a = in, op.b = norm, op.c = weight, op.d = vocab, op.f = eps;
  vocab_ = vocab;
  green_lists_.emplace(vocab);
  ops_.push_back(op);
}

// --- run ---------------------------------------------------------------------------------------------------------------

int Model::add_sampler(SamplingParams params, const int32_t* prompt, size_t length) {
  samplers_[next_slot_] = std::make_unique<SamplerState>(std::move(params), prompt, length);
  return next_slot_++;
}

void Model::remove_sampler(int slot) { samplers_.erase(slot); }

void Model::copy_block(int32_t from, int32_t to) {
  const int64_t size = block_stride();
  std::memcpy(kv_layer(0) + to * size, kv_layer(0) + from * size, size_t(size));
}

void Model::step(const StepInput& input, const StepOutput& output) {
  if (input.rows > max_rows_) throw std::invalid_argument("step: more rows than the buffers hold");
  FlushToZero flush;
  BoundCaller bound(pool_.caller_cpus());
  size_t widest = 1;
  for (const auto& buffer : buffers_) widest = std::max(widest, size_t(buffer.width));
  while (scratch_.size() < size_t(pool_.size())) scratch_.emplace_back(widest * sizeof(float));
  plan(input);
  merged_queries_ = 0;
  for (const AttentionTask& merge : attention_.merges()) merged_queries_ += merge.end - merge.begin;
  const StepInput* now = &input;
  for (const Op& op : ops_) {
    const auto start = profiling_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
    if (op.kind == OpKind::kNarrow)
      now = &narrow(op, *now);
    else if (now->rows)
      run(op, *now, output);
    if (profiling_)
      op_seconds_[size_t(op.kind)] += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
}

void Model::plan(const StepInput& input) {
  const int32_t tile = kernels_->tile_product && kv_kind_ == KvKind::kInt8 ? kTileRows : 0;
  if (heads_per_kv_) attention_.make(input, {kv_heads_, heads_per_kv_, head_dim_, windows_, tile}, pool_.size());
  lora_.plan(input);
}

std::vector<std::string> Model::op_kinds() {
  return {"embed", "prepare", "linear", "rope_store", "attention", "narrow", "logits"};
}

void Model::set_profiling(bool on) {
  profiling_ = on;
  op_seconds_.assign(op_kinds().size(), 0.0);
}

void Model::run(const Op& op, const StepInput& input, const StepOutput& output) {
  switch (op.kind) {
    case OpKind::kEmbed: return run_embed(op, input);
    case OpKind::kPrepare: {
      const FloatBuffer& in = buffers_[size_t(op.a)];
      return run_prepare(in.row(0), in.width, input.rows, op.b, op.f, op.c, op.readers);
    }
    case OpKind::kLinear: {
      const FloatBuffer& out = buffers_[size_t(op.c)];
      return run_linear(op.a, weights_[size_t(op.b)], input.rows, out.row(0) + op.e, out.width, op.epilogue,
                        op.d < 0 ? nullptr : vectors_[size_t(op.d)].data(), int(&op - ops_.data()));
    }
    case OpKind::kRopeStore: return run_rope_store(op, input);
    case OpKind::kAttention: return run_attention(op, input);
    case OpKind::kNarrow: return;  // `step` does it
    case OpKind::kLogits: return run_logits(op, input, output);
  }
}

namespace {
// Rows per task of the cheap per-row operations: enough work to be worth a hand-over.
int32_t row_chunk(int32_t rows, int threads) { return std::max(4, (rows + threads * 4 - 1) / (threads * 4)); }
}  // namespace

void Model::run_embed(const Op& op, const StepInput& input) {
  const PackedWeight& weight = weights_[size_t(op.a)];
  const FloatBuffer& out = buffers_[size_t(op.b)];
  const int32_t chunk = row_chunk(input.rows, pool_.size());
  pool_.run((input.rows + chunk - 1) / chunk, [&](int32_t i, int) {
    for (int32_t r = i * chunk; r < std::min(input.rows, (i + 1) * chunk); r++)
      unpack_row(weight, input.tokens[r], op.f, out.row(r));
  });
}

void Model::run_prepare(const float* in, int64_t stride, int32_t rows, int norm, float eps, int activations,
                        const std::vector<int>& readers) {
  const ActivationBuffer& out = activations_[size_t(activations)];
  const bool adapted = std::any_of(readers.begin(), readers.end(), [&](int op) { return lora_.changes(op); });
  if (adapted) lora_.open_inputs(activations, out.width);
  const float* weight = norm < 0 ? nullptr : vectors_[size_t(norm)].data();
  const bool two = activation_kind_ == ActivationKind::kInt16;
  const Activations view = out.view();
  // Whole tiles: rows of one tile share cache lines, which two threads would pass back and forth.
  const int32_t chunk = pad(row_chunk(rows, pool_.size()), kTileRows);
  pool_.run((rows + chunk - 1) / chunk, [&](int32_t i, int thread) {
    float* scratch = scratch_[size_t(thread)].as<float>();
    int32_t r = i * chunk;
    const int32_t end = std::min(rows, r + chunk);
    if (!adapted && out.integer && !out.bf16)
      for (; r + kTileRows <= end; r += kTileRows)
        kernels_->prepare_tile(in + r * stride, stride, out.width, weight, eps, view, r, two);
    for (; r < end; r++) {
      const float* x = in + r * stride;
      kernels_->prepare(x, out.width, weight, eps, view, r, out.integer && !two, out.integer && two, out.bf16, scratch);
      if (adapted) lora_.take(activations, r, x, weight, eps, scratch);
    }
  });
}

void Model::run_linear(int activations, const PackedWeight& weight, int32_t rows, float* out, int64_t stride,
                       Epilogue epilogue, const float* bias, int op) {
  const ActivationKind kind = weight.kind == WeightKind::kBf16 ? ActivationKind::kBf16 : activation_kind_;
  LinearArgs args{weight.view(), activations_[size_t(activations)].view(), kind, rows, out, stride, bias, epilogue};
  const bool adapted = op >= 0 && lora_.changes(op);
  const int32_t before = adapted ? lora_.open(op, activations, args) : 0;
  // Tasks are pieces of the outputs, which kernels take in pairs of 16-blocks; of many rows also pieces of these, so that a
  // thread goes on with rows that it has itself prepared, and they fit into its cache.
  const int32_t parts = adapted ? 1 : row_parts(weight.kind, rows);
  const int32_t blocks = weight.n / kLanes, tiles = (rows + kTileRows - 1) / kTileRows, groups = pad(weight.k, kGroup) / kGroup;
  const int32_t chunk = std::max(1, blocks * parts / (pool_.size() * 12)) * 2, pieces = (blocks + chunk - 1) / chunk;
  pool_.run(before + parts * pieces, [&](int32_t i, int) {
    if (i < before) return lora_.down(i);
    const int32_t part = (i - before) / pieces, begin = (i - before) % pieces * chunk, end = std::min(blocks, begin + chunk);
    if (adapted) lora_.up(begin, end);
    const int32_t first = tiles * part / parts * kTileRows, last = std::min(rows, tiles * (part + 1) / parts * kTileRows);
    LinearArgs own = args;
    own.in = args.in.from(first, groups);
    own.rows = last - first;
    own.out += first * stride;
    kernels_->linear(own, begin, end);
  }, before);
}

// How many parts the rows of a linear layer are cut into. Each reads all of the weight, so it has enough rows to be bound by
// the units nonetheless; on several nodes, where a weight lies by its outputs, there is one.
int32_t Model::row_parts(WeightKind kind, int32_t rows) const {
  const int32_t threads = pool_.size(), most = rows / kernels_->part_rows[size_t(kind)];
  if (!pool_.one_node() || most < 2) return 1;
  return most < threads ? most : threads * ((rows + threads * kMostPartRows - 1) / (threads * kMostPartRows));
}

void Model::run_rope_store(const Op& op, const StepInput& input) {
  const FloatBuffer& qkv = buffers_[size_t(op.a)];
  const float* cos = vectors_[size_t(op.c)].data();
  const float* sin = vectors_[size_t(op.d)].data();
  const int32_t half = op.rotary / 2, dim = head_dim_;
  uint8_t* pool = kv_layer(op.b);
  const int32_t chunk = row_chunk(input.rows, pool_.size());
  pool_.run((input.rows + chunk - 1) / chunk, [&](int32_t i, int) {
    const int32_t first = i * chunk, end = std::min(input.rows, first + chunk);
    int32_t sequence = int32_t(std::upper_bound(input.offsets, input.offsets + input.sequences + 1, first) - input.offsets) - 1;
    for (int32_t r = first; r < end; r++) {
      while (input.offsets[sequence + 1] <= r) sequence++;
      const int32_t position = input.positions[r];
      float* q = qkv.row(r);
      float* k = q + int64_t(op.heads) * dim;
      const float* v = k + int64_t(kv_heads_) * dim;
      const int64_t at = int64_t(position) * half;
      kernels_->rope(q, op.heads + kv_heads_, dim, op.rotary, cos + at, sin + at);  // k follows q
      const int32_t block = input.block_tables[int64_t(sequence) * input.max_blocks + position / kKvBlock];
      const int32_t p = position % kKvBlock;
      for (int32_t h = 0; h < kv_heads_; h++, k += dim, v += dim) {
        uint8_t* head = pool + int64_t(block) * block_stride() + int64_t(h) * kv_head_bytes(kv_kind_, dim);
        kernels_->store_kv(kv_kind_, k, v, dim, p, head);
      }
    }
  });
}

AttentionArgs Model::attention_args(const Op& op, const StepInput& input, const AttentionTask& task) {
  const FloatBuffer& qkv = buffers_[size_t(op.a)];
  const FloatBuffer& out = buffers_[size_t(op.b)];
  return {qkv.row(0), qkv.width, out.row(0), out.width, kv_kind_, kv_layer(op.c), block_stride(),
          input.block_tables + int64_t(task.sequence) * input.max_blocks, attention_.rows(task), heads_per_kv_, head_dim_,
          op.window, op.f, task.block_begin, task.block_end, task.parts ? attention_.parts() : nullptr};
}

void Model::run_attention(const Op& op, const StepInput& input) {
  const auto& tasks = attention_.tasks();
  pool_.run(int32_t(tasks.size()), [&](int32_t i, int) {
    const AttentionTask& task = tasks[size_t(i)];
    kernels_->attention(attention_args(op, input, task), task.kv_head, task.begin, task.end);
  });
  const auto& merges = attention_.merges();
  pool_.run(int32_t(merges.size()), [&](int32_t i, int) {
    const AttentionTask& task = merges[size_t(i)];
    kernels_->attention_merge(attention_args(op, input, task), task.kv_head, task.begin, task.end);
  });
}

const StepInput& Model::narrow(const Op& op, const StepInput& input) {
  const StepInput& wanted = wanted_.choose(input);
  if (&wanted == &input) return input;
  for (const int id : op.buffers) {
    const FloatBuffer& buffer = buffers_[size_t(id)];
    for (int32_t r = 0; r < wanted.rows; r++)  // ascending, so that none is overwritten before it has moved
      if (const int32_t from = wanted_.rows()[size_t(r)]; from != r)
        std::memcpy(buffer.row(r), buffer.row(from), size_t(buffer.width) * sizeof(float));
  }
  if (wanted.rows) plan(wanted);
  return wanted;
}

namespace {
bool is_draft(const StepInput& input, int32_t at) {
  return at > 0 && input.slots[at] >= 0 && input.slots[at - 1] == input.slots[at];
}
}  // namespace

void Model::run_logits(const Op& op, const StepInput& input, const StepOutput& output) {
  const PackedWeight& weight = weights_[size_t(op.c)];
  const FloatBuffer& in = buffers_[size_t(op.a)];
  const FloatBuffer& rows = buffers_[size_t(logits_buffer_)];
  const int32_t vocab = op.d, padded = weight.n;
  float* logits = logits_.as<float>();
  for (int32_t first = 0; first < input.logit_rows; first += kLogitChunk) {
    const int32_t count = std::min(kLogitChunk, input.logit_rows - first);
    for (int32_t i = 0; i < count; i++)
      std::memcpy(rows.row(i), in.row(input.logit_index[first + i]), size_t(rows.width) * sizeof(float));
    run_prepare(rows.row(0), rows.width, count, op.b, op.f, logits_activations_, {});
    run_linear(logits_activations_, weight, count, logits, padded + kLogitGap, Epilogue::kStore, nullptr, -1);
    const auto choose = [&](int32_t at, int thread) {
      float* row = logits + int64_t(at - first) * (padded + kLogitGap);
      const int32_t slot = input.slots[at];
      std::fill(row + vocab, row + padded, kLogitPad);
      if (output.logits) std::memcpy(output.logits + int64_t(at) * vocab, row, size_t(vocab) * sizeof(float));
      if (slot < 0) {
        const Choice scored = score_token(*kernels_, row, padded, input.targets[at]);
        output.ids[at] = scored.id;
        output.logprobs[at] = scored.logprob;
        return;
      }
      const uint32_t* allowed = input.allowed ? input.allowed[at] : nullptr;
      if (allowed && __atomic_load_n(allowed + (vocab + 31) / 32, __ATOMIC_ACQUIRE) == 0) {
        output.ids[at] = kLate;
        return;
      }
      if (is_draft(input, at) && output.ids[at - 1] != input.targets[at - 1]) {
        output.ids[at] = kDropped;
        return;
      }
      const uint64_t position = uint64_t(input.positions[input.logit_index[at]]) + 1;  // of the new token
      try {
        SamplerState& state = *samplers_.at(slot);
        const Choice choice = choose_token(*kernels_, row, vocab, padded, state, allowed, position, sampling_[size_t(thread)],
                                           *green_lists_);
        output.ids[at] = choice.id;
        output.logprobs[at] = choice.logprob;
        if (choice.id >= 0) state.append(choice.id);
      } catch (const std::exception&) {  // one request's trouble, not its neighbours'
        output.ids[at] = kFailed;
      }
    };
    // A sequence's token and the drafts behind it are chosen for in order, by one thread: each builds on the one before.
    logit_groups_.clear();
    for (int32_t at = first; at < first + count; at++)
      if (at == first || !is_draft(input, at)) logit_groups_.push_back(at);
    logit_groups_.push_back(first + count);
    pool_.run(int32_t(logit_groups_.size()) - 1, [&](int32_t i, int thread) {
      for (int32_t at = logit_groups_[size_t(i)]; at < logit_groups_[size_t(i) + 1]; at++) choose(at, thread);
    });
  }
}

}  // namespace interlingua
