#include "lora.h"

#include <algorithm>
#include <thread>

namespace interlingua {
namespace {

constexpr int64_t kTileGroup = int64_t(kTileRows) * kGroup;  // values of 16 rows in one group of inputs

constexpr uint32_t kReadsBeforeYield = 2000;  // the thread that we wait for may need our core

int32_t groups_of(int32_t inputs) { return (inputs + kGroup - 1) / kGroup; }

void grow(Buffer& buffer, size_t bytes) {
  if (buffer.size() < bytes) buffer = Buffer(std::max(bytes, 2 * buffer.size()));
}

// Activations that hold bf16 alone, from value `offset` on.
Activations bf16_view(const Buffer& bf16, const Buffer& rounded, int64_t offset) {
  return {nullptr, nullptr, nullptr, nullptr, nullptr, bf16.as<uint16_t>() + offset, rounded.as<float>() + offset};
}

LinearArgs bf16_args(const Weight& weight, const Activations& in, int32_t rows, float* out, int64_t stride) {
  return {weight, in, ActivationKind::kBf16, rows, out, stride, nullptr, Epilogue::kStore};
}

}  // namespace

void LoraAdapter::add(int op, LoraLayer layer) {
  if (layers_.size() <= size_t(op)) layers_.resize(size_t(op) + 1);
  layers_[size_t(op)] = std::make_unique<LoraLayer>(std::move(layer));
}

size_t LoraAdapter::bytes() const {
  size_t bytes = 0;
  for (const auto& layer : layers_)
    if (layer) bytes += layer->a.quants.size() + layer->b.quants.size();
  return bytes;
}

void LoraStep::plan(const StepInput& input) {
  runs_.clear();
  places_ = 0;
  if (!input.adapter_count) return;
  place_of_.assign(size_t(input.rows), -1);
  for (int32_t a = 0; a < input.adapter_count; a++) {
    Run run{input.adapters[a], places_, 0, nullptr, 0};
    for (int32_t s = 0; s < input.sequences; s++) {
      if (input.adapter_of[s] != a) continue;
      for (int32_t r = input.offsets[s]; r < input.offsets[s + 1]; r++) place_of_[size_t(r)] = run.first + run.rows++;
    }
    if (!run.rows) continue;
    places_ += run.tiles() * kTileRows;
    runs_.push_back(run);
  }
}

bool LoraStep::changes(int op) const {
  return std::any_of(runs_.begin(), runs_.end(), [op](const Run& run) { return run.adapter->layer(op) != nullptr; });
}

void LoraStep::open_inputs(int id, int32_t width) {
  if (inputs_.size() <= size_t(id)) inputs_.resize(size_t(id) + 1);
  Inputs& in = inputs_[size_t(id)];
  in.width = width;
  const size_t values = size_t(places_) * size_t(width);
  grow(in.bf16, values * sizeof(uint16_t));
  grow(in.rounded, values * sizeof(float));
}

void LoraStep::take(int id, int32_t row, const float* x, const float* norm, float eps, float* scratch) const {
  const int32_t place = place_of_[size_t(row)];
  if (place < 0) return;
  const Inputs& in = inputs_[size_t(id)];
  kernels_->prepare(x, in.width, norm, eps, bf16_view(in.bf16, in.rounded, 0), place, false, false, true, scratch);
}

int32_t LoraStep::open(int op, int id, LinearArgs& args) {
  in_ = &inputs_[size_t(id)];
  tasks_.clear();
  done_.store(0, std::memory_order_relaxed);
  changed_ = place_of_;
  int64_t values = 0;
  for (Run& run : runs_) {
    run.layer = run.adapter->layer(op);
    run.hidden = values;
    if (!run.layer) {
      for (int32_t& place : changed_)
        if (place >= run.first && place < run.first + run.rows) place = -1;
      continue;
    }
    const int32_t parts = int32_t(run.layer->ranks.size()), groups = groups_of(run.layer->rank);
    values += int64_t(parts) * run.tiles() * groups * kTileGroup;
    for (int32_t part = 0; part < parts; part++)
      for (int32_t tile = 0; tile < run.tiles(); tile++)
        for (int32_t group = 0; group < groups; group++) tasks_.push_back({&run, part, tile, group});
  }
  stride_ = args.weight.n + kLanes;  // rows a power of two apart would share a few lines of the cache
  grow(hidden_bf16_, size_t(values) * sizeof(uint16_t));
  grow(hidden_rounded_, size_t(values) * sizeof(float));
  grow(delta_, size_t(places_) * size_t(stride_) * sizeof(float));
  args.delta = delta_.as<float>();
  args.delta_stride = stride_;
  args.place = changed_.data();
  return int32_t(tasks_.size());
}

// 32 values of A x for the rows of one tile, rounded to bf16. What lies above a part's rank is zero.
void LoraStep::down(int32_t task) noexcept {
  const auto [run_of_task, part, tile, group] = tasks_[size_t(task)];
  const Run& run = *run_of_task;
  const LoraLayer& layer = *run.layer;
  const int32_t inputs = groups_of(in_->width), groups = groups_of(layer.rank);
  const int64_t at = run.hidden + ((int64_t(part) * run.tiles() + tile) * groups + group) * kTileGroup;
  const int32_t rows = std::min(run.rows - tile * kTileRows, kTileRows);
  const int32_t left = layer.ranks[size_t(part)] - group * kGroup;
  const int32_t blocks = std::clamp((left + kLanes - 1) / kLanes, 0, kGroup / kLanes);
  alignas(64) float y[kTileRows][kGroup] = {};
  if (blocks) {
    Weight a = layer.a.view();
    a.quants += (int64_t(part) * layer.rank + group * kGroup) * a.k * int64_t(sizeof(uint16_t));
    a.n = blocks * kLanes;
    const Activations x = bf16_view(in_->bf16, in_->rounded, int64_t(run.first / kTileRows + tile) * inputs * kTileGroup);
    kernels_->linear(bf16_args(a, x, rows, &y[0][0], kGroup), 0, blocks);
  }
  const Activations out = bf16_view(hidden_bf16_, hidden_rounded_, at);
  for (int32_t r = 0; r < rows; r++) kernels_->prepare(y[r], kGroup, nullptr, 0.0f, out, r, false, false, true, nullptr);
  done_.fetch_add(1, std::memory_order_release);
}

void LoraStep::up(int32_t begin, int32_t end) const {
  for (uint32_t reads = 1; done_.load(std::memory_order_acquire) < int32_t(tasks_.size()); reads++)
    if (reads % kReadsBeforeYield == 0) std::this_thread::yield();
  for (const Run& run : runs_) {
    if (!run.layer) continue;
    const LoraLayer& layer = *run.layer;
    float* out = delta_.as<float>() + run.first * stride_;
    LinearArgs args =
        bf16_args(layer.b.view(), bf16_view(hidden_bf16_, hidden_rounded_, run.hidden), run.rows, out, stride_);
    args.slices = layer.slices.data();
    args.slice_stride = int64_t(run.tiles()) * groups_of(layer.rank) * kTileGroup;
    kernels_->linear(args, begin, end);
  }
}

}  // namespace interlingua
