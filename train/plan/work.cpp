#include "train/plan/work.h"

#include "train/config/resolve.h"
#include "train/plan/block_shape.h"
#include "train/plan/formula.h"

namespace moelab {
namespace {

constexpr std::array<std::string_view, kEfforts> names = {
    "products_fp32",    "products_bf16",        "products_fp16",         "products_fp8",
    "attention_fp32",   "attention_16bit",      "score_bytes",           "dispatch_bytes",
    "row_bytes",        "logit_elements",       "update_adamw",          "update_bf16_moments",
    "update_adam8bit",  "update_adamw_compact", "update_adam_mini",      "update_lion",
    "update_adafactor", "update_sgd",           "update_without_master", "gradient_bytes",
    "int8_elements",    "fp8_elements",         "weight_elements",       "host_bytes",
    "nvme_bytes",       "block_passes"};

// One forward pass of one block, split as recomputation splits it.
struct BlockFlops {
  double projections, attention, first_product, rest_of_experts, textbook;

  double experts() const { return first_product + rest_of_experts + textbook; }
  double products() const { return projections + experts(); }
};

BlockFlops forward_flops(const Settings& s, const BlockShape& b) {
  const double rows = b.expert_rows * b.hidden + b.tokens * b.shared_hidden;
  const int64_t sequence = s.train.row();
  const bool whole = s.attention.kernel == AttentionKernel::materialised;
  const double seen = whole ? static_cast<double>(sequence)
                            : s.attention.span().pairs(sequence) / static_cast<double>(sequence);
  const bool onehot = s.model.dispatch == Dispatch::onehot;
  return {.projections = 2 * b.tokens * b.width * (2 * b.queries + 2 * b.keys),
          .attention = 4 * b.tokens * b.queries * seen,
          .first_product = 4 * rows * b.width,
          .rest_of_experts = 2 * rows * b.width + 2 * b.tokens * b.width * b.experts,
          // two products of (S, E*C) and (E*C, D) a sequence
          .textbook = onehot ? 4 * b.tokens * b.experts * b.capacity * b.width : 0};
}

// What backward repeats of the forward pass, in blocks: products and attention.
struct Repeated {
  double products = 0, attention = 0;
};

Repeated repeated_flops(const Settings& s, const BlockFlops& f) {
  const double whole = recomputed_blocks(s), others = static_cast<double>(s.model.layers) - whole;
  Repeated r{whole * f.products(), whole * f.attention};
  if (recomputes_piece(s, Piece::attention)) {
    r.products += others * f.projections;
    r.attention += others * f.attention;
  }
  if (recomputes_piece(s, Piece::moe)) {
    r.products += others * f.experts();
  } else if (recomputes_piece(s, Piece::expert_hidden)) {
    r.products += others * f.first_product;
  }
  return r;
}

Effort product_effort(ComputePrecision compute) {
  switch (compute) {
    case ComputePrecision::fp32:
      return Effort::products_fp32;
    case ComputePrecision::bf16:
      return Effort::products_bf16;
    case ComputePrecision::fp16:
      return Effort::products_fp16;
    case ComputePrecision::fp8:
      break;
  }
  return Effort::products_fp8;
}

Effort update_effort(const OptimSettings& optim) {
  switch (optim.name) {
    case OptimizerName::adamw:
      return optim.state == OptimizerState::bf16 ? Effort::update_bf16_moments : Effort::update_adamw;
    case OptimizerName::adam8bit:
      return Effort::update_adam8bit;
    case OptimizerName::adamw_compact:
      return Effort::update_adamw_compact;
    case OptimizerName::adam_mini:
      return Effort::update_adam_mini;
    case OptimizerName::lion:
      return Effort::update_lion;
    case OptimizerName::adafactor:
      return Effort::update_adafactor;
    case OptimizerName::sgd:
      break;
  }
  return Effort::update_sgd;
}

double& at(Work& work, Effort effort) { return work[static_cast<size_t>(effort)]; }

void add_moved(Work& work, Home home, double bytes) {
  if (home == Home::host) at(work, Effort::host_bytes) += bytes;
  if (home == Home::nvme) at(work, Effort::nvme_bytes) += bytes;
}

// Activations and products of all micro-batches.
void add_passes(Work& work, const Settings& s, const BlockShape& b) {
  const auto layers = static_cast<double>(s.model.layers);
  const auto passes = static_cast<double>(s.train.accumulation);
  const bool wide = s.precision.compute == ComputePrecision::fp32;
  const BlockFlops f = forward_flops(s, b);
  const Repeated again = repeated_flops(s, f);
  // one forward and a backward of twice the arithmetic
  at(work, product_effort(s.precision.compute)) += passes * (3 * layers * f.products() + again.products);
  at(work, wide ? Effort::attention_fp32 : Effort::attention_16bit) +=
      passes * (3 * layers * f.attention + again.attention);
  const double head = 6 * b.tokens * b.width * static_cast<double>(s.model.vocab);
  const Effort outer = wide                                            ? Effort::products_fp32
                       : s.precision.compute == ComputePrecision::fp16 ? Effort::products_fp16
                                                                       : Effort::products_bf16;
  at(work, outer) += passes * head;
  at(work, Effort::logit_elements) += passes * b.tokens * static_cast<double>(s.model.vocab);
  const double blocks = layers + (f.products() > 0 ? again.products / f.products() : 0) / 3;
  at(work, Effort::row_bytes) +=
      passes * blocks * b.element *
      (b.tokens * (6 * b.width + b.queries + 2 * b.keys) + b.expert_rows * (2 * b.width + 3 * b.hidden));
  if (s.attention.kernel == AttentionKernel::materialised) {
    at(work, Effort::score_bytes) +=
        passes * blocks * b.element * b.tokens * static_cast<double>(s.model.heads * s.train.row());
  }
  if (s.model.dispatch == Dispatch::onehot)
    at(work, Effort::dispatch_bytes) += passes * blocks * 8 * b.tokens * b.experts * b.capacity;
  at(work, Effort::block_passes) += passes * (2 * layers + recomputed_blocks(s));
}

void add_storage(Work& work, const Settings& s) {
  const double passes = static_cast<double>(s.train.accumulation), bytes = passes * saved_bytes(s);
  const double element = s.precision.compute == ComputePrecision::fp32 ? 4 : 2;
  switch (s.activations.storage) {
    case ActivationStorage::keep:
      break;
    case ActivationStorage::int8:
      at(work, Effort::int8_elements) += bytes / element;
      break;
    case ActivationStorage::fp8:
      at(work, Effort::fp8_elements) += bytes / element;
      break;
    case ActivationStorage::host:
      add_moved(work, Home::host, 2 * bytes);
      break;
    case ActivationStorage::nvme:
      add_moved(work, Home::nvme, 2 * bytes);
      break;
  }
}

void add_update(Work& work, const Settings& s) {
  const double parameters =
      static_cast<double>(s.model.layers) * BlockShape(s).parameters() + outer_parameters(s.model);
  const StateFormula bytes = state_formula(s, parameters);
  at(work, update_effort(s.optim)) += parameters;
  if (s.precision.compute != ComputePrecision::fp32 && s.precision.master == MasterWeights::none &&
      s.optim.name != OptimizerName::adamw_compact) {
    at(work, Effort::update_without_master) += parameters;
  }
  const auto passes = static_cast<double>(s.train.accumulation);
  if (passes > 1) at(work, Effort::gradient_bytes) += passes * 4 * parameters;
  add_moved(work, s.placement.gradients, 2 * bytes.gradients);
  // a step on the host takes gradients down and weights up; in a file, all of the state passes twice
  if (s.placement.optimizer == Home::host) add_moved(work, Home::host, bytes.gradients + bytes.weights);
  if (s.placement.optimizer == Home::nvme) add_moved(work, Home::nvme, 2 * (bytes.optimizer + bytes.masters));
}

// A block's weights come for forward and for backward of each micro-batch, and go with the step.
void add_weights(Work& work, const Settings& s, const BlockShape& b) {
  const auto passes = static_cast<double>(s.train.accumulation);
  const double parameters = static_cast<double>(s.model.layers) * b.parameters();
  const bool coded = s.precision.store == WeightStore::int8 || s.precision.store == WeightStore::fp8;
  const StateFormula bytes = state_formula(s, parameters);
  if (coded) at(work, Effort::weight_elements) += 2 * passes * parameters;
  if (s.placement.parameters == Home::device) return;
  add_moved(work, s.placement.parameters, (2 * passes + 1) * bytes.weights);
  if (s.placement.optimizer == Home::device) add_moved(work, s.placement.parameters, 2 * bytes.masters);
}

}  // namespace

std::string_view effort_name(Effort effort) { return names[static_cast<size_t>(effort)]; }

Work step_work(const Settings& settings) {
  Work work{};
  const BlockShape block(settings);
  add_passes(work, settings, block);
  add_storage(work, settings);
  add_update(work, settings);
  add_weights(work, settings, block);
  return work;
}

}  // namespace moelab
