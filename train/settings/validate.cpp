#include "train/settings/validate.h"

#include <algorithm>
#include <limits>
#include <set>

#include "moe/settings/rank_model.h"
#include "train/settings/convert.h"
#include "train/settings/facts/pipeline.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/require.h"
#include "train/settings/facts/storage.h"
#include "train/settings/facts/update_rule.h"
#include "train/settings/for_each_field.h"
#include "train/settings/presets/parameter_count.h"
#include "train/settings/resolve.h"

namespace moelab {
namespace {

// Settings made in code have not been through read_value, so each value is printed and read here.
void check_intervals(const Settings& settings) {
  for_each_field(settings, [](const Field& field, const auto& value) {
    std::remove_cvref_t<decltype(value)> again{};
    const Value text{Value::Kind::argument, value_text(value), {}, 0};
    require(
        read_value(text, field.constraint, again),
        field.key() + ": expected " + expected_text(&value, field.constraint) + ", got " + describe(text));
  });
}

void check_attention(const ModelSettings& m) {
  require(m.head_dim > 0 || m.d_model % m.heads == 0, named("model.heads", m.heads) + " does not divide " +
                                                          named("model.d_model", m.d_model) +
                                                          "; change one of them, or give model.head_dim");
  require(m.heads % m.kv() == 0, named("model.kv_heads", m.kv()) + " does not divide " +
                                     named("model.heads", m.heads) + "; query heads share kv heads evenly");
  require(m.head() % 2 == 0, named("model.head_dim", m.head()) +
                                 " is odd; the rotary embedding turns pairs, so it must be even");
}

void check_experts(const ModelSettings& m) {
  if (m.dense()) {
    require(m.shared_experts == 0,
            named("model.shared_experts", m.shared_experts) +
                " with model.experts=0: a dense model has no shared experts; set it to 0");
    return;
  }
  require(m.experts_per_token <= m.experts, named("model.experts_per_token", m.experts_per_token) +
                                                " is more than " + named("model.experts", m.experts));
  if (m.router != RouterKind::expert_choice) return;
  require(m.dispatch == Dispatch::capacity,
          "model.router=expert_choice with " + named("model.dispatch", m.dispatch) +
              ": with expert choice each expert fills its own capacity; set model.dispatch=capacity");
  require(m.capacity_factor * double(m.experts_per_token) <= double(m.experts),
          "model.router=expert_choice with " + named("model.capacity_factor", m.capacity_factor) +
              ": an expert would choose more tokens than a sequence has; set it to at most model.experts / "
              "model.experts_per_token");
}

void check_size(const Settings& s) {
  require(approximate_parameter_count(s.model) < 1e15,
          "model: more than 10^15 parameters; check model.layers, model.experts and the widths");
  require(s.train.micro_batch <= std::numeric_limits<int32_t>::max() / s.train.sequence,
          named("train.micro_batch", s.train.micro_batch) + " times " +
              named("train.sequence", s.train.sequence) + " is more than 2^31 tokens; lower one of them");
}

void check_packing(const Settings& s) {
  if (s.train.tokens_per_device == 0) return;
  const std::string packed = named("train.tokens_per_device", s.train.tokens_per_device);
  require(s.train.micro_batch == 1,
          packed + " with " + named("train.micro_batch", s.train.micro_batch) +
              ": packing puts all tokens of a forward pass into one row; set train.micro_batch=1");
  require(s.attention.kernel != AttentionKernel::materialised,
          packed +
              " with attention.kernel=materialised: it would let documents see each other; set "
              "attention.kernel=flash");
  require(s.model.dense() || s.model.router != RouterKind::expert_choice,
          packed +
              " with model.router=expert_choice: documents of one row would take each other's places at the "
              "experts; set "
              "another model.router");
}

void check_data(const DataSettings& d) {
  require(d.workers > 0 || d.prefetch == 0, "data.workers=0 with " + named("data.prefetch", d.prefetch) +
                                                ": batches are read ahead by workers, and there are none; "
                                                "set data.workers=1 or more, or data.prefetch=0");
}

void check_pieces(const ActivationSettings& a, const ModelSettings& m) {
  const auto given = [&](Piece piece) { return std::count(a.pieces.begin(), a.pieces.end(), piece); };
  for (const Piece piece : a.pieces)
    require(given(piece) == 1,
            named("activations.pieces", a.pieces) + " names " + value_text(piece) + " twice");
  require(!given(Piece::expert_hidden) || m.dense() || m.dispatch != Dispatch::onehot,
          named("activations.pieces", a.pieces) +
              " with model.dispatch=onehot: there is no single hidden tensor to recompute; name moe "
              "instead, or set model.dispatch=capacity or dropless");
}

void check_activations(const ActivationSettings& a, int64_t layers) {
  const bool listed = a.checkpoint == CheckpointMode::layers;
  require(listed || a.layers.empty(),
          named("activations.layers", a.layers) + " with " + named("activations.checkpoint", a.checkpoint) +
              ": only activations.checkpoint=layers reads this list; leave it at []");
  require(!listed || !a.layers.empty(),
          "activations.checkpoint=layers with activations.layers=[]: list the blocks to recompute there, "
          "e.g. [0, 4]");
  for (int64_t layer : a.layers)
    require(layer < layers, named("activations.layers", a.layers) + " with " + named("model.layers", layers) +
                                "; blocks count from 0 to " + std::to_string(layers - 1));
  require(std::set<int64_t>(a.layers.begin(), a.layers.end()).size() == a.layers.size(),
          named("activations.layers", a.layers) + " names a block twice");
}

void check_reference(const Settings& s) {
  require_drive(s, "reference.placement", s.reference.placement, s.reference.placement);
}

// A captured step has fixed tensor shapes, and nothing that waits for the host or moves to or from it.
void check_captured_step(const Settings& s) {
  const auto refuse = [&](bool found, const std::string& setting, const std::string& remedy) {
    require(!found,
            named("memory.cuda_graphs", s.memory.cuda_graphs) + " with " + setting + "; set " + remedy +
                ", or memory.cuda_graphs=" + (captures_decode(s.memory.cuda_graphs) ? "decode" : "none"));
  };
  // of dropless experts only one product over all, in bf16 on some GPUs: the trainer asks its own
  const bool fixed =
      s.model.dispatch == Dispatch::capacity ||
      (s.model.dispatch == Dispatch::dropless && s.precision.compute == ComputePrecision::bf16);
  refuse(!s.model.dense() && !fixed,
         named("model.dispatch", s.model.dispatch) + ": a CUDA graph needs fixed shapes",
         "model.dispatch=capacity");
  refuse(!s.model.dense() && s.model.experts_per_token == s.model.experts && s.model.capacity_factor >= 1,
         "all tokens at all experts: their rows are counted on the host, which a CUDA graph cannot wait for",
         "model.experts_per_token below model.experts");
  refuse(storage_facts(s.activations.storage).home != Home::device,
         named("activations.storage", s.activations.storage) + ": a CUDA graph cannot copy to or from there",
         "activations.storage=keep");
  const auto home = [&](const char* name, Home where) {
    refuse(where != Home::device, named(name, where) + ": a CUDA graph cannot copy to or from there",
           std::string(name) + "=device");
  };
  home("placement.gradients", s.placement.gradients);
  home("placement.optimizer", s.placement.optimizer);
  refuse(
      s.optim.in_backward,
      "optim.in_backward=true: the host decides about each gradient, and a CUDA graph cannot wait for that",
      "optim.in_backward=false");
  refuse(!s.reference.path.empty(),
         named("reference.path", s.reference.path) + ": a CUDA graph cannot copy to or from there",
         "reference.path=");
}

void check_cuda_graphs(const Settings& s) {
  if (s.memory.cuda_graphs == CudaGraphs::none || s.run.device == DeviceChoice::cpu) return;
  const std::string with = named("memory.cuda_graphs", s.memory.cuda_graphs) + " with ";
  require(s.placement.parameters == Home::device,
          with + named("placement.parameters", s.placement.parameters) +
              ": a CUDA graph cannot copy to or from there; set placement.parameters=device, or "
              "memory.cuda_graphs=none");
  require(!weight_code(s.precision),
          with + named("precision.store", s.precision.store) +
              ": a CUDA graph needs weights at fixed addresses, and stored weights are decoded anew each "
              "time; set precision.store=compute, or memory.cuda_graphs=none");
  if (captures_step(s.memory.cuda_graphs)) check_captured_step(s);
}

void check_sample(const Settings& s) {
  if (s.sample.every == 0) return;
  const std::string every = named("sample.every", s.sample.every);
  require(
      !s.sample.prompt.empty(),
      every + " with sample.prompt=: there is no text to continue; give one, or @FILE with one text a line");
  require(
      s.model.dense() || s.model.router != RouterKind::expert_choice,
      every +
          " with model.router=expert_choice: experts choose among all tokens of a text, so each new token "
          "would change those before it; set sample.every=0 or another model.router");
}

void check_optim(const Settings& s) {
  const OptimSettings& o = s.optim;
  require(o.betas.size() == 2,
          named("optim.betas", o.betas) + ": two numbers are expected, e.g. [0.9, 0.95]");
  require(o.min_lr <= o.lr, named("optim.min_lr", o.min_lr) + " is more than " + named("optim.lr", o.lr));
  check_update_rule(s);
  require(
      !o.in_backward || s.precision.compute != ComputePrecision::fp16,
      "optim.in_backward=true with precision.compute=fp16: the loss scale must see all gradients before one "
      "is used; set precision.compute=bf16");
  require(!o.in_backward || s.precision.loss_scale.automatic(),
          "optim.in_backward=true with " + named("precision.loss_scale", s.precision.loss_scale) +
              ": the loss scale must see all gradients before one is used; set precision.loss_scale=0");
  require(!o.in_backward || s.train.accumulation == 1,
          "optim.in_backward=true with " + named("train.accumulation", s.train.accumulation) +
              ": each gradient is used and dropped at once, so none can be summed; set train.accumulation=1");
}

void check_dynamic_batch(const Settings& s) {
  const DynamicBatchSettings& d = s.memory.dynamic_batch;
  require(d.min <= d.max, named("memory.dynamic_batch.min", d.min) + " is more than " +
                              named("memory.dynamic_batch.max", d.max));
  if (!d.enabled) return;
  require(s.memory.recover,
          "memory.dynamic_batch.enabled=true with memory.recover=false: the one lets the batch change, the "
          "other forbids it; change one "
          "of them");
  require(!s.optim.in_backward,
          "memory.dynamic_batch.enabled=true with optim.in_backward=true: a smaller batch needs "
          "accumulation, which in_backward does not have; set one of "
          "them false");
  require(d.min <= s.train.micro_batch && s.train.micro_batch <= d.max,
          named("train.micro_batch", s.train.micro_batch) + " is outside of memory.dynamic_batch.min=" +
              value_text(d.min) + " to max=" + value_text(d.max) + ", its range; change one of them");
}

// The update rule must allow a cut of the experts' weights where those of a rank end.
void check_cut_of_experts(const Settings& s) {
  const ModelSettings& m = s.model;
  const int64_t D = m.d_model, F = m.d_expert;
  for (const WeightShape& weight : {WeightShape{.shape = {m.experts, 2 * F, D}, .hidden = true},
                                    WeightShape{.shape = {m.experts, D, F}, .hidden = true}}) {
    const Cut cut = update_rule_facts(s.optim).cut(weight);
    const int64_t unit = s.parallel.expert * cut.align;
    require(cut.shape.front() % unit == 0,
            named("parallel.expert", s.parallel.expert) + " with " + named("optim.name", s.optim.name) +
                ": this optimizer keeps blocks of " + std::to_string(cut.align) +
                " weights together, and a rank's experts do not end where a block does; set another "
                "optim.name, or model.d_model and model.d_expert to multiples of 16");
  }
}

void check_expert_ranks(const Settings& s) {
  if (s.parallel.expert == 1) return;
  const std::string ranks = named("parallel.expert", s.parallel.expert) + " with ";
  require(!s.model.dense(), ranks + "model.experts=0: there are no experts to share; set parallel.expert=1");
  require(s.model.experts % s.parallel.expert == 0,
          ranks + named("model.experts", s.model.experts) +
              ": each rank needs as many experts as the others; set parallel.expert to a number that divides "
              "model.experts");
  require(s.model.dispatch != Dispatch::onehot,
          ranks +
              "model.dispatch=onehot: the one-hot dispatch needs all experts on one rank; set "
              "model.dispatch=capacity or dropless");
  require(s.memory.cuda_graphs == CudaGraphs::none,
          ranks + named("memory.cuda_graphs", s.memory.cuda_graphs) +
              ": a graph cannot exchange rows with other ranks; set memory.cuda_graphs=none");
  check_cut_of_experts(s);
}

// Ranks have slices of weights, and no rule may need more of a weight than a slice.
void check_rule_of_slices(const Settings& s, const std::string& ranks) {
  const UpdateRuleFacts& rule = update_rule_facts(s.optim);
  const WeightShape weight{.shape = {1024, 1024}, .hidden = true, .heads = 8, .head_rows = 64};
  const Cut cut = rule.cut(weight);
  bool alone = cut.shape.size() == 1 && cut.align == 1;
  for (const StateSlot& slot : rule.layout(weight)) alone = alone && slot.shape == weight.shape;
  require(alone,
          ranks + named("optim.name", s.optim.name) +
              ": its state of a weight depends on rows, blocks or matrices of which a rank has a slice; set "
              "optim.name=adamw, lion or sgd");
}

void check_tensor_ranks(const Settings& s) {
  if (s.parallel.tensor == 1) return;
  const std::string ranks = named("parallel.tensor", s.parallel.tensor) + " with ";
  rank_model(s.model, s.parallel.tensor);  // throws
  check_rule_of_slices(s, ranks);
  require(s.reference.path.empty(),
          ranks + named("reference.path", s.reference.path) +
              ": ranks with a part of the vocabulary cannot compare two models; set parallel.tensor=1");
  require(s.memory.cuda_graphs == CudaGraphs::none,
          ranks + named("memory.cuda_graphs", s.memory.cuda_graphs) +
              ": a graph cannot add over other ranks; set memory.cuda_graphs=none");
}

void check_parallel(const Settings& s) {
  check_pipeline(s);
  check_tensor_ranks(s);
  check_expert_ranks(s);
  require(s.parallel.reduce == Reduction::micro_batch || s.parallel.zero < 2,
          "parallel.reduce=step with " + named("parallel.zero", s.parallel.zero) +
              ": a rank that holds only its part of the gradients cannot add whole ones first; set "
              "parallel.zero=1, or parallel.reduce=micro_batch");
  require(s.placement.reshard_after_forward || s.parallel.zero == 3,
          "placement.reshard_after_forward=false with " + named("parallel.zero", s.parallel.zero) +
              ": only parallel.zero=3 gathers weights; set it to 3, or reshard_after_forward=true");
  require(
      s.placement.reshard_after_forward || s.activations.checkpoint != CheckpointMode::segments,
      "placement.reshard_after_forward=false with activations.checkpoint=segments: what runs a segment again "
      "gathers its weights again; set reshard_after_forward=true, or activations.checkpoint=full");
  require(s.parallel.zero < 3 || s.memory.cuda_graphs == CudaGraphs::none,
          "parallel.zero=3 with " + named("memory.cuda_graphs", s.memory.cuda_graphs) +
              ": a graph reads weights where they were when it was captured, and gathered ones move; set "
              "memory.cuda_graphs=none");
  if (s.parallel.ranks() == 1) return;
  const std::string ranks = (s.parallel.pipeline > 1 ? named("parallel.pipeline", s.parallel.pipeline)
                             : s.parallel.tensor > 1 ? named("parallel.tensor", s.parallel.tensor)
                                                     : named("parallel.data", s.parallel.data)) +
                            " with ";
  require(!captures_step(s.memory.cuda_graphs),
          ranks + named("memory.cuda_graphs", s.memory.cuda_graphs) +
              ": a captured step cannot send gradients; set memory.cuda_graphs=none or decode");
  require(!s.memory.dynamic_batch.enabled,
          ranks + "memory.dynamic_batch.enabled=true: ranks cannot agree on a batch yet; set it to false");
}

void check_memory(const MemorySettings& m) {
  constexpr int64_t kLeast = 1024;  // bytes; a smaller limit lacks its unit
  require(m.limit.count == 0 || m.limit.count >= kLeast,
          named("memory.limit", m.limit) + ": a number without a unit counts bytes; write memory.limit=" +
              std::to_string(m.limit.count) + "GiB, or MiB");
  constexpr int64_t kMiB = int64_t{1} << 20, kSmallest = 21;  // the allocator's segments have 20 MiB or more
  require(m.max_split.count == 0 || (m.max_split.count % kMiB == 0 && m.max_split.count >= kSmallest * kMiB),
          named("memory.max_split", m.max_split) +
              ": CUDA's allocator takes whole MiB, and more than 20 of them; set 21MiB or more, or 0");
  require(m.target < m.warning && m.warning < m.critical && m.critical < m.emergency,
          "memory.target, warning, critical and emergency must rise in this order; they are " +
              value_text(m.target) + ", " + value_text(m.warning) + ", " + value_text(m.critical) + ", " +
              value_text(m.emergency));
}

}  // namespace

void validate(const Settings& settings) {
  check_intervals(settings);
  check_attention(settings.model);
  check_experts(settings.model);
  check_size(settings);
  check_packing(settings);
  check_data(settings.data);
  check_activations(settings.activations, settings.model.layers);
  check_pieces(settings.activations, settings.model);
  check_precision(settings);
  check_storage(settings);
  check_placement(settings);
  check_parallel(settings);
  check_reference(settings);
  check_optim(settings);
  check_sample(settings);
  check_cuda_graphs(settings);
  require(
      settings.eval.every == 0 || settings.eval.batches > 0,
      named("eval.every", settings.eval.every) +
          " with eval.batches=0: an evaluation needs batches; set eval.batches=1 or more, or eval.every=0");
  require(settings.run.name.find('/') == std::string::npos && settings.run.name != "." &&
              settings.run.name != "..",
          named("run.name", settings.run.name) + " is not a plain folder name; give a path with run.dir");
  check_memory(resolve(settings).memory);
  check_dynamic_batch(settings);
}

bool is_valid(const Settings& settings) {
  try {
    validate(settings);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace moelab
