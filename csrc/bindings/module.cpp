// The Python face of the engine: typed arrays only, so that a wrong dtype or layout fails at the border. `step` releases
// the GIL for its whole length.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <malloc.h>

#include <algorithm>
#include <new>
#include <stdexcept>

#include "cpu.h"
#include "model.h"
#include "numa.h"
#include "probe.h"
#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace interlingua;

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void expect(bool good, const char* what) {
  if (!good) throw std::invalid_argument(what);
}

void step(Model& model, Vector<const int32_t> tokens, Vector<const int32_t> positions, Vector<const int32_t> offsets,
          Matrix<const int32_t> block_tables, Vector<const int32_t> logit_index, Vector<const int32_t> slots,
          Vector<const int32_t> targets, Vector<int32_t> ids, Vector<float> logprobs, std::optional<Matrix<float>> logits,
          const std::vector<std::optional<Vector<const uint32_t>>>& allowed, const std::vector<const LoraAdapter*>& adapters,
          std::optional<Vector<const int32_t>> adapter_of) {
  const size_t rows = tokens.shape(0), sequences = block_tables.shape(0), wanted = logit_index.shape(0);
  expect(positions.shape(0) == rows && offsets.shape(0) == sequences + 1, "step: rows and sequences do not fit");
  expect(slots.shape(0) == wanted && targets.shape(0) == wanted && ids.shape(0) >= wanted && logprobs.shape(0) >= wanted,
         "step: logit rows do not fit");
  for (size_t i = 0; i < wanted; i++) {
    expect(logit_index(i) >= 0 && size_t(logit_index(i)) < rows, "step: no such row for logits");
    expect(slots(i) >= 0 || (targets(i) >= 0 && targets(i) < model.vocab()), "step: a row without a sampler needs a token to score");
  }
  std::vector<const uint32_t*> masks;
  for (const auto& mask : allowed) {
    expect(!mask || mask->shape(0) == size_t(model.vocab() + 31) / 32 + 1, "step: a mask has the wrong width");
    masks.push_back(mask ? mask->data() : nullptr);
  }
  expect(masks.empty() || masks.size() == wanted, "step: masks do not fit");
  expect(adapter_of ? adapter_of->shape(0) == sequences : adapters.empty(), "step: adapters do not fit");
  expect(std::find(adapters.begin(), adapters.end(), nullptr) == adapters.end(), "step: None is no adapter");
  StepInput input;
  input.rows = int32_t(rows);
  input.sequences = int32_t(sequences);
  input.max_blocks = int32_t(block_tables.shape(1));
  input.logit_rows = int32_t(wanted);
  input.tokens = tokens.data();
  input.positions = positions.data();
  input.offsets = offsets.data();
  input.block_tables = block_tables.data();
  input.logit_index = logit_index.data();
  input.slots = slots.data();
  input.targets = targets.data();
  input.allowed = masks.empty() ? nullptr : masks.data();
  input.adapter_count = int32_t(adapters.size());
  input.adapters = adapters.data();
  input.adapter_of = adapter_of ? adapter_of->data() : nullptr;
  StepOutput output;
  output.ids = ids.data();
  output.logprobs = logprobs.data();
  output.logits = logits ? logits->data() : nullptr;
  nb::gil_scoped_release release;
  model.step(input, output);
}

using IdValues = std::vector<std::pair<int32_t, float>>;

void make_sampling_params(SamplingParams* self, bool do_sample, float temperature, int32_t top_k, float top_p, float typical_p,
                          float min_p, float repetition_penalty, float frequency_penalty, float presence_penalty,
                          bool frequency_over_output, uint64_t seed, int32_t top_n, IdValues logit_bias,
                          std::vector<int32_t> suppressed, int32_t min_new_tokens, double watermark_gamma,
                          float watermark_delta) {
  new (self) SamplingParams{do_sample, temperature, top_k, top_p, typical_p, min_p, repetition_penalty, frequency_penalty,
                            presence_penalty, frequency_over_output, seed, top_n, std::move(logit_bias),
                            std::move(suppressed), min_new_tokens, watermark_gamma, watermark_delta};
}

// A row of logits and its request's state, outside of a model; for tests.
struct LoneRow {
  const KernelTable* kernels;
  int32_t vocab, padded;
  std::vector<float> row;
  SamplerState state;
  SamplerScratch scratch;
  GreenLists lists;

  LoneRow(const std::string& isa, const Vector<const int32_t>& prompt, const Vector<const int32_t>& output,
          const SamplingParams& params, size_t size)
      : kernels(choose_kernels(isa)),
        vocab(int32_t(size)),
        padded((vocab + kLanes - 1) / kLanes * kLanes),
        row(static_cast<size_t>(padded)),
        state(params, prompt.data(), prompt.shape(0)),
        lists(vocab) {
    for (size_t i = 0; i < output.shape(0); i++) state.append(output.data()[i]);
  }
  float* fill(const Vector<const float>& logits) {
    std::fill(row.begin(), row.end(), kLogitPad);
    std::copy(logits.data(), logits.data() + vocab, row.begin());
    return row.data();
  }
};

std::vector<int32_t> choose(const std::string& isa, Vector<const float> logits, Vector<const int32_t> prompt,
                            Vector<const int32_t> output, const SamplingParams& params, uint64_t first, int32_t count,
                            std::optional<Vector<const uint32_t>> allowed) {
  expect(!allowed || allowed->shape(0) == (logits.shape(0) + 31) / 32, "choose: the mask has the wrong width");
  LoneRow lone(isa, prompt, output, params, logits.shape(0));
  std::vector<int32_t> chosen;
  FlushToZero flush;
  for (int32_t i = 0; i < count; i++)
    chosen.push_back(choose_token(*lone.kernels, lone.fill(logits), lone.vocab, lone.padded, lone.state,
                                  allowed ? allowed->data() : nullptr, first + uint64_t(i), lone.scratch, lone.lists)
                         .id);
  return chosen;
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> own(size_t size, T* data) {
  return {data, {size}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<T*>(p); })};
}

nb::ndarray<nb::numpy, double, nb::ndim<1>> distribution(const std::string& isa, Vector<const float> logits,
                                                         Vector<const int32_t> prompt, Vector<const int32_t> output,
                                                         const SamplingParams& params) {
  LoneRow lone(isa, prompt, output, params, logits.shape(0));
  auto out = own(logits.shape(0), new double[logits.shape(0)]);
  FlushToZero flush;
  sampling_distribution(*lone.kernels, lone.fill(logits), lone.vocab, lone.padded, lone.state, lone.scratch, lone.lists,
                        out.data());
  return out;
}

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes bytes_of(const GreenMask& mask) {
  auto out = own(mask.size(), new uint8_t[mask.size()]);
  std::copy(mask.begin(), mask.end(), out.data());
  return out;
}

Bytes green_list(int32_t last_id, int32_t vocab, double gamma) {
  expect(last_id >= 0 && vocab > 0 && gamma > 0.0 && gamma < 1.0, "green_list: last_id >= 0, vocab > 0, 0 < gamma < 1");
  return bytes_of(green_mask(last_id, vocab, gamma));
}

std::vector<std::string> kernel_names() {
  std::vector<std::string> names;
  for (const KernelTable* table : available_kernels()) names.emplace_back(table->name);
  return names;
}

using ByteMatrix = nb::ndarray<nb::numpy, uint8_t, nb::ndim<2>>;

ByteMatrix product_of_tiles(const std::string& isa, TileProductKind kind, Matrix<const uint8_t> a, Matrix<const uint8_t> b,
                            Matrix<const uint8_t> c, uint8_t palette) {
  const auto operand = [](const Matrix<const uint8_t>& m) {
    expect(m.shape(0) <= 255 && m.shape(1) <= 65535, "tile_product: no tile configuration can say so large a shape");
    return TileOperand{m.data(), int32_t(m.shape(0)), int32_t(m.shape(1))};
  };
  uint8_t* sums = new uint8_t[c.shape(0) * c.shape(1)];
  const nb::capsule owner(sums, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  tile_product(isa, {kind, operand(a), operand(b), operand(c), sums, palette});
  return {sums, {c.shape(0), c.shape(1)}, owner};
}

// glibc raises both bounds with use, to 32 and 64 MB for each thread that ever took much. Hardly a step allocates that much: a plan's parts, once.
void bound_free_heap(int bytes) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, bytes);
  mallopt(M_TRIM_THRESHOLD, bytes);
#endif
}

void trim_heap() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// One KV block of one layer as raw bytes, for tests of bit equality.
nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> kv_block(const Model& model, int32_t layer, int32_t block) {
  expect(layer >= 0 && layer < model.kv_layers() && block >= 0 && block < model.kv_blocks(), "no such KV block");
  return {model.kv_block(layer, block), {model.kv_layer_bytes()}, nb::find(model)};
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Native engine of interlingua: packed weights, KV pool, one call a step.";
  // A daemon thread may hold a model when the interpreter ends, and with it the process.
  nb::set_leak_warnings(false);
  m.attr("KV_BLOCK") = kKvBlock;
  m.attr("LATE") = kLate;
  m.attr("DROPPED") = kDropped;
  m.attr("FAILED") = kFailed;
  m.attr("UNUSABLE") = kUnusable;
  m.def("bound_free_heap", bound_free_heap, "bytes"_a,
        "From now on pieces of so many bytes go back to the system when they are freed, and so does what is free at the end of "
        "a thread's heap when it is more. Has an effect with glibc alone, as `trim_heap`.");
  m.def("trim_heap", trim_heap, nb::call_guard<nb::gil_scoped_release>(),
        "Gives what is free within the heaps of all threads back to the system.");
  m.def("kernel_names", kernel_names, "Kernel tiers that run on this machine, slowest first.");
  m.def("philox_uniform", philox_uniform, "seed"_a, "position"_a, "Uniform double in [0, 1) of (seed, position).");

  nb::enum_<WeightKind>(m, "WeightKind")
      .value("INT4", WeightKind::kInt4)
      .value("INT8", WeightKind::kInt8)
      .value("BF16", WeightKind::kBf16);
  nb::enum_<ActivationKind>(m, "ActivationKind")
      .value("INT8", ActivationKind::kInt8)
      .value("INT16", ActivationKind::kInt16)
      .value("BF16", ActivationKind::kBf16);
  nb::enum_<SourceFormat>(m, "SourceFormat")
      .value("Q4_0", SourceFormat::kQ4_0)
      .value("Q4_1", SourceFormat::kQ4_1)
      .value("Q8_0", SourceFormat::kQ8_0)
      .value("F32", SourceFormat::kF32)
      .value("F16", SourceFormat::kF16)
      .value("BF16", SourceFormat::kBf16);
  nb::enum_<Epilogue>(m, "Epilogue")
      .value("STORE", Epilogue::kStore)
      .value("ADD", Epilogue::kAdd)
      .value("SILU_GATE", Epilogue::kSiluGate);

  nb::enum_<KvKind>(m, "KvKind").value("FP16", KvKind::kHalf).value("INT8", KvKind::kInt8);

  m.def("kv_head_bytes", kv_head_bytes, "kind"_a, "head_dim"_a, "Bytes of one KV head's part of a KV block in one layer.");
  m.def("time_linear", time_linear, "isa"_a, "threads"_a, "kind"_a, "activations"_a, "n"_a, "k"_a, "rows"_a, "repeat"_a,
        nb::call_guard<nb::gil_scoped_release>(), "Least seconds of one linear layer, for bench/kernels.py.");
  m.def("time_prepare", time_prepare, "isa"_a, "threads"_a, "activations"_a, "k"_a, "rows"_a, "repeat"_a,
        nb::call_guard<nb::gil_scoped_release>(), "Least seconds of one norm and rounding, for bench/kernels.py.");
  m.def("time_attention", time_attention, "isa"_a, "threads"_a, "kind"_a, "sequences"_a, "context"_a, "rows"_a, "kv_heads"_a,
        "heads_per_kv"_a, "head_dim"_a, "repeat"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Least seconds of one layer's attention, for bench/kernels.py.");
  nb::enum_<TileProductKind>(m, "TileProductKind")
      .value("SIGNED_SIGNED", TileProductKind::kSignedSigned)
      .value("SIGNED_UNSIGNED", TileProductKind::kSignedUnsigned)
      .value("UNSIGNED_SIGNED", TileProductKind::kUnsignedSigned)
      .value("UNSIGNED_UNSIGNED", TileProductKind::kUnsignedUnsigned)
      .value("BF16", TileProductKind::kBf16);
  m.def("tile_product", product_of_tiles, "isa"_a, "kind"_a, "a"_a, "b"_a, "c"_a, "palette"_a = 1,
        "c + a b as one tile instruction of a tier computes it; bytes, shaped as the tiles are configured: a [m][4k], "
        "b [k][4n], c [m][4n]. For tests: a shape or palette that the instructions refuse ends the process.");
  m.def("read_bandwidth", read_bandwidth, "threads"_a, "bytes"_a, "repeat"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second that all threads together read.");

  nb::class_<SamplingParams>(m, "SamplingParams")
      .def("__init__", make_sampling_params, nb::kw_only(), "do_sample"_a = false, "temperature"_a = 1.0f, "top_k"_a = 0,
           "top_p"_a = 1.0f, "typical_p"_a = 1.0f, "min_p"_a = 0.0f, "repetition_penalty"_a = 1.0f,
           "frequency_penalty"_a = 0.0f, "presence_penalty"_a = 0.0f, "frequency_over_output"_a = false, "seed"_a = 0,
           "top_n"_a = 0, "logit_bias"_a = IdValues(), "suppressed"_a = std::vector<int32_t>(), "min_new_tokens"_a = 0,
           "watermark_gamma"_a = 0.0, "watermark_delta"_a = 0.0f);
  m.def("choose", choose, "isa"_a, "logits"_a, "prompt"_a, "output"_a, "params"_a, "first"_a, "count"_a,
        "allowed"_a.none() = nb::none(), "Tokens chosen for one row of logits at `count` positions from `first` on.");
  m.def("distribution", distribution, "isa"_a, "logits"_a, "prompt"_a, "output"_a, "params"_a,
        "Probabilities [vocab] that `choose` draws from; 0 where an id was filtered out.");
  m.def("green_list", green_list, "last_id"_a, "vocab"_a, "gamma"_a,
        "Which ids the watermark favours after `last_id`: bit id % 8 of byte id // 8.");
  nb::class_<GreenLists>(m, "GreenLists")
      .def(nb::init<int32_t, size_t>(), "vocab"_a, "capacity_bytes"_a)
      .def(
          "get",
          [](GreenLists& lists, int32_t last_id, double gamma) {
            std::shared_ptr<const GreenMask> mask;
            {
              nb::gil_scoped_release release;
              mask = lists.get(last_id, gamma);
            }
            return bytes_of(*mask);
          },
          "last_id"_a, "gamma"_a)
      .def_prop_ro("bytes", &GreenLists::bytes);

  nb::class_<NumaNode>(m, "NumaNode")
      .def(
          "__init__",
          [](NumaNode* self, int id, std::vector<int> cpus) {
            expect(!cpus.empty(), "NumaNode: a node without CPUs has no threads");
            new (self) NumaNode{id, std::move(cpus)};
          },
          "id"_a, "cpus"_a)
      .def_ro("id", &NumaNode::id)
      .def_ro("cpus", &NumaNode::cpus);
  m.def("allowed_cpus", allowed_cpus, "CPUs that the calling thread may run on, ascending.");
  m.def("numa_nodes", numa_nodes, "cpus"_a, "root"_a = kNumaRoot,
        "Nodes that have some of `cpus` (ascending), with these CPUs alone; none if the system does not tell of each.");
  nb::class_<ThreadPool>(m, "ThreadPool", "The threads of a model; for tests.")
      .def(nb::init<int, const std::vector<NumaNode>&>(), "threads"_a, "nodes"_a = std::vector<NumaNode>())
      .def(
          "run",
          [](ThreadPool& pool, int32_t count, const std::function<void(int32_t, int)>& task, int32_t common) {
            nb::gil_scoped_release release;
            pool.run(count, task, common);
          },
          "count"_a, "task"_a, "common"_a = 0)
      .def_prop_ro("placement", &ThreadPool::placement);

  nb::class_<LoraAdapter>(m, "LoraAdapter")
      .def(nb::init<>())
      .def_prop_ro("bytes", &LoraAdapter::bytes);

  nb::class_<Model>(m, "Model")
      .def(nb::init<const std::string&, int, ActivationKind, int32_t, const std::vector<NumaNode>&>(), "isa"_a, "threads"_a,
           "activations"_a, "max_rows"_a, "nodes"_a = std::vector<NumaNode>())
      .def("add_weight", &Model::add_weight, "kind"_a, "n"_a, "k"_a)
      .def(
          "fill_weight",
          [](Model& model, int weight, SourceFormat format, Vector<const uint8_t> source, Vector<const int32_t> rows) {
            nb::gil_scoped_release release;
            model.fill_weight(weight, format, source.data(), source.shape(0), rows.data(), int32_t(rows.shape(0)));
          },
          "weight"_a, "format"_a, "source"_a, "rows"_a)
      .def(
          "add_vector", [](Model& model, Vector<const float> v) { return model.add_vector(v.data(), v.shape(0)); }, "values"_a)
      .def("set_kv", &Model::set_kv, "kind"_a, "layers"_a, "blocks"_a, "kv_heads"_a, "head_dim"_a)
      .def("add_buffer", &Model::add_buffer, "width"_a)
      .def("add_activations", &Model::add_activations, "width"_a, "integer"_a, "bf16"_a)
      .def("op_embed", &Model::op_embed, "weight"_a, "out"_a, "scale"_a)
      .def("op_prepare", &Model::op_prepare, "source"_a, "norm"_a, "eps"_a, "activations"_a)
      .def("op_linear", &Model::op_linear, "activations"_a, "weight"_a, "out"_a, "epilogue"_a, "bias"_a, "column"_a)
      .def(
          "add_lora",
          [](const Model& model, LoraAdapter& adapter, int op, std::vector<int32_t> ranks, std::vector<int32_t> slices,
             Matrix<const float> a, Matrix<const float> b) {
            nb::gil_scoped_release release;
            model.add_lora(adapter, op, std::move(ranks), std::move(slices), a.data(), a.size(), b.data(), b.size());
          },
          "adapter"_a, "op"_a, "ranks"_a, "slices"_a, "a"_a, "b"_a)
      .def("op_rope_store", &Model::op_rope_store, "qkv"_a, "layer"_a, "heads"_a, "rotary"_a, "cos"_a, "sin"_a)
      .def("op_attention", &Model::op_attention, "qkv"_a, "out"_a, "layer"_a, "heads"_a, "window"_a, "scale"_a)
      .def("op_narrow", &Model::op_narrow, "buffers"_a)
      .def("op_logits", &Model::op_logits, "source"_a, "norm"_a, "eps"_a, "weight"_a, "vocab"_a)
      .def(
          "add_sampler",
          [](Model& model, const SamplingParams& params, Vector<const int32_t> prompt) {
            return model.add_sampler(params, prompt.data(), prompt.shape(0));
          },
          "params"_a, "prompt"_a)
      .def("top_tokens", &Model::top_tokens, "slot"_a,
           "(id, raw logprob) of the alternatives to the slot's last choice, best first.")
      .def("remove_sampler", &Model::remove_sampler, "slot"_a)
      .def_prop_ro("sampler_count", &Model::sampler_count)
      .def("copy_block", &Model::copy_block, "source"_a, "target"_a)
      .def(
          "touch_kv",
          [](Model& model, size_t begin) {
            expect(begin <= model.kv_bytes(), "no such byte of the KV pool");
            nb::gil_scoped_release release;
            return model.touch_kv(begin);
          },
          "begin"_a,
          "Has the system give a piece of the KV pool's pages from byte `begin`, a piece's begin, ahead of their use. Returns "
          "where to go on; `kv_bytes` when nothing is left to do.")
      .def("step", step, "tokens"_a, "positions"_a, "offsets"_a, "block_tables"_a, "logit_index"_a, "slots"_a, "targets"_a,
           "ids"_a, "logprobs"_a, "logits"_a.none() = nb::none(),
           "allowed"_a = std::vector<std::optional<Vector<const uint32_t>>>(), "adapters"_a = std::vector<const LoraAdapter*>(),
           "adapter_of"_a.none() = nb::none())
      .def("set_profiling", &Model::set_profiling, "on"_a)
      .def_prop_ro("op_seconds", &Model::op_seconds)
      .def_static("op_kinds", &Model::op_kinds)
      .def("kv_block", kv_block, "layer"_a, "block"_a)
      .def_prop_ro("kernels", &Model::kernels)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("placement", &Model::placement, "The NUMA nodes that threads and memory are spread over; empty on one.")
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("merged_queries", &Model::merged_queries,
                   "Queries of the last step whose attention several tasks computed, over the first layer; for tests.")
      .def_prop_ro("kv_bytes", &Model::kv_bytes);
}
