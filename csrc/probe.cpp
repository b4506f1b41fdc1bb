#include "probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "cpu.h"
#include "model.h"
#include "threads.h"

namespace interlingua {
namespace {

template <class Call>
double least_seconds(int32_t repeat, Call&& call) {
  double least = 1e30;
  for (int32_t i = 0; i < std::max(repeat, 1) + 1; i++) {  // the first one warms caches
    const auto start = std::chrono::steady_clock::now();
    call();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (i) least = std::min(least, seconds);
  }
  return least;
}

std::vector<float> waves(size_t count, float step) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; i++) values[i] = std::sin(float(i % 65521) * step);
  return values;
}

}  // namespace

double time_linear(const std::string& isa, int threads, WeightKind kind, ActivationKind activations, int32_t n, int32_t k,
                   int32_t rows, int32_t repeat) {
  Model model(isa, threads, activations, rows, numa_nodes(allowed_cpus()));
  const bool bf16 = kind == WeightKind::kBf16;
  const int weight = model.add_weight(kind, n, k), in = model.add_buffer(k), out = model.add_buffer(n);
  const int packed = model.add_activations(k, !bf16, bf16);
  const std::vector<float> values = waves(size_t(n) * size_t(k), 0.37f);
  std::vector<int32_t> outputs(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; i++) outputs[size_t(i)] = i;
  model.fill_weight(weight, SourceFormat::kF32, reinterpret_cast<const uint8_t*>(values.data()), values.size() * 4,
                    outputs.data(), n);
  const std::vector<float> row = waves(size_t(k), 0.11f);
  for (int32_t r = 0; r < rows; r++) std::copy(row.begin(), row.end(), model.buffer_row(in, r));
  StepInput input;
  input.rows = rows;
  model.op_prepare(in, -1, 0.0f, packed);
  model.step(input, {});
  model.clear_ops();
  model.op_linear(packed, weight, out, Epilogue::kStore, -1, 0);
  return least_seconds(repeat, [&] { model.step(input, {}); });
}

double time_prepare(const std::string& isa, int threads, ActivationKind activations, int32_t k, int32_t rows, int32_t repeat) {
  Model model(isa, threads, activations, rows, numa_nodes(allowed_cpus()));
  const int in = model.add_buffer(k);
  const bool bf16 = activations == ActivationKind::kBf16;
  const int packed = model.add_activations(k, !bf16, bf16);
  const std::vector<float> values = waves(size_t(k), 0.11f);
  for (int32_t r = 0; r < rows; r++) std::copy(values.begin(), values.end(), model.buffer_row(in, r));
  StepInput input;
  input.rows = rows;
  model.op_prepare(in, model.add_vector(values.data(), values.size()), 1e-5f, packed);
  return least_seconds(repeat, [&] { model.step(input, {}); });
}

double time_attention(const std::string& isa, int threads, KvKind kind, int32_t sequences, int32_t context, int32_t rows,
                      int32_t kv_heads, int32_t heads_per_kv, int32_t head_dim, int32_t repeat) {
  if (rows > context) throw std::invalid_argument("more queries than positions");
  const int32_t heads = kv_heads * heads_per_kv, width = (heads + 2 * kv_heads) * head_dim;
  const int32_t blocks = (context + kKvBlock - 1) / kKvBlock;
  Model model(isa, threads, ActivationKind::kInt8, sequences * rows, numa_nodes(allowed_cpus()));
  model.set_kv(kind, 1, sequences * blocks, kv_heads, head_dim);
  model.fill_kv(0x3c);  // memory that was never written is one page of zeros
  const int qkv = model.add_buffer(width), out = model.add_buffer(heads * head_dim);
  const std::vector<float> values = waves(size_t(width), 0.23f);
  for (int32_t r = 0; r < sequences * rows; r++) std::copy(values.begin(), values.end(), model.buffer_row(qkv, r));
  std::vector<int32_t> positions, offsets{0}, tables(size_t(sequences) * size_t(blocks));
  for (int32_t s = 0; s < sequences; s++) {
    for (int32_t r = 0; r < rows; r++) positions.push_back(context - rows + r);
    offsets.push_back(offsets.back() + rows);
  }
  for (size_t i = 0; i < tables.size(); i++) tables[i] = int32_t(i);
  StepInput input;
  input.rows = sequences * rows, input.sequences = sequences, input.max_blocks = blocks;
  input.positions = positions.data(), input.offsets = offsets.data(), input.block_tables = tables.data();
  model.op_attention(qkv, out, 0, heads, 0, 0.125f);
  return least_seconds(repeat, [&] { model.step(input, {}); });
}

double read_bandwidth(int threads, size_t bytes, int32_t repeat) {
  ThreadPool pool(threads, numa_nodes(allowed_cpus()));
  const BoundCaller bound(pool.caller_cpus());
  const Buffer buffer(bytes);
  pool.place(buffer.data(), bytes);
  std::fill(buffer.data(), buffer.data() + bytes, uint8_t(1));
  constexpr size_t kPiece = 65536;
  const int32_t pieces = int32_t(bytes / kPiece);
  std::vector<uint64_t> sums(size_t(threads) * 8);
  const double seconds = least_seconds(repeat, [&] {
    pool.run(pieces, [&](int32_t i, int thread) {
      const uint64_t* p = reinterpret_cast<const uint64_t*>(buffer.data() + size_t(i) * kPiece);
      uint64_t sum[8] = {};
      for (size_t j = 0; j < kPiece / 8; j += 8)
        for (size_t l = 0; l < 8; l++) sum[l] ^= p[j + l];
      for (size_t l = 0; l < 8; l++) sums[size_t(thread) * 8 + l] ^= sum[l];
    });
  });
  volatile uint64_t sink = sums[0];
  (void)sink;
  return double(pieces) * double(kPiece) / seconds;
}

void tile_product(const std::string& isa, const TileProduct& product) {
  const KernelTable* kernels = choose_kernels(isa);
  if (!kernels->tile_product) throw std::invalid_argument("kernel tier '" + isa + "' has no tiles");
  kernels->tile_product(product);
}

}  // namespace interlingua
