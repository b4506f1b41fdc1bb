#include "lora.h"

#include <algorithm>
#include <cstring>

#include "model.h"

namespace interlingua {
namespace {

constexpr int64_t kTileGroup = int64_t(kTileRows) * kGroup;  // values of 16 rows in one group of inputs

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

void LoraStep::down(int op, int id, LinearArgs& args) {
  const Inputs& in = inputs_[size_t(id)];
  tasks_.clear();
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
    const int32_t parts = int32_t(run.layer->ranks.size());
    values += int64_t(parts) * run.tiles() * run.layer->groups * kTileGroup;
    for (int32_t part = 0; part < parts; part++)
      for (int32_t tile = 0; tile < run.tiles(); tile++)
        for (int32_t group = 0; group < run.layer->groups; group++) tasks_.push_back({&run, part, tile, group});
  }
  outputs_ = args.weight.n;
  grow(hidden_bf16_, size_t(values) * sizeof(uint16_t));
  grow(hidden_rounded_, size_t(values) * sizeof(float));
  grow(delta_, size_t(places_) * size_t(outputs_) * sizeof(float));
  pool_.run(int32_t(tasks_.size()), [&](int32_t i, int) { multiply(tasks_[size_t(i)], in); });
  args.delta = delta_.as<float>();
  args.delta_stride = outputs_;
  args.place = changed_.data();
}

// 32 values of A x for the rows of one tile, rounded to bf16.
void LoraStep::multiply(const Task& task, const Inputs& in) const {
  const Run& run = *task.run;
  const LoraLayer& layer = *run.layer;
  const int32_t tile_of_all = run.first / kTileRows + task.tile, inputs = in.width / kGroup;
  const int64_t at = ((int64_t(task.part) * run.tiles() + task.tile) * layer.groups + task.group) * kTileGroup;
  const Activations out = bf16_view(hidden_bf16_, hidden_rounded_, run.hidden + at);
  const int32_t left = layer.ranks[size_t(task.part)] - task.group * kGroup;
  const int32_t blocks = std::clamp((left + kLanes - 1) / kLanes, 0, kGroup / kLanes);
  alignas(64) float y[kTileRows][kGroup] = {};
  const int32_t rows = std::min(run.rows - task.tile * kTileRows, kTileRows);
  if (blocks) {
    Weight a = layer.a.view();
    const int64_t first = (int64_t(task.part) * layer.groups + task.group) * (kGroup / kLanes);
    a.quants += first * inputs * kLanes * kGroup * int64_t(sizeof(uint16_t));
    a.n = blocks * kLanes;
    const Activations x = bf16_view(in.bf16, in.rounded, int64_t(tile_of_all) * inputs * kTileGroup);
    kernels_->linear(bf16_args(a, x, rows, &y[0][0], kGroup), 0, blocks);
  }
  for (int32_t r = 0; r < rows; r++) kernels_->prepare(y[r], kGroup, nullptr, 0.0f, out, r, false, false, true, nullptr);
}

void LoraStep::up(int32_t begin, int32_t end) const {
  for (const Run& run : runs_) {
    if (!run.layer) continue;
    const LoraLayer& layer = *run.layer;
    float* out = delta_.as<float>() + int64_t(run.first) * outputs_;
    LinearArgs args =
        bf16_args(layer.b.view(), bf16_view(hidden_bf16_, hidden_rounded_, run.hidden), run.rows, out, outputs_);
    args.slices = layer.slices.data();
    args.slice_stride = int64_t(run.tiles()) * layer.groups * kTileGroup;
    kernels_->linear(args, begin, end);
  }
}

}  // namespace interlingua
