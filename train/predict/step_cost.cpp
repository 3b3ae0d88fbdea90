#include "train/predict/step_cost.h"

#include <algorithm>
#include <stdexcept>

#include "train/predict/block_shape.h"
#include "train/predict/formula.h"
#include "train/predict/rank_share.h"
#include "train/settings/facts/data_parallel.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/storage.h"
#include "train/settings/facts/update_rule.h"

namespace moelab {
namespace {

constexpr std::string_view kOfTheModel[] = {
    "products_fp32",  // FLOPs of matrix products outside of attention, by precision.compute
    "products_bf16",   "products_fp16",
    "products_fp8",    // with the conversions of their factors
    "attention_fp32",  // FLOPs between queries, keys and values
    "attention_16bit",
    "score_bytes",     // of S x S scores, once per forward pass
    "dispatch_bytes",  // of one-hot dispatch tensors, once per forward pass
    "row_bytes",       // written by a forward pass outside of products: norms, activations, gathered rows
    "logit_elements",  // tokens x vocabulary
};
constexpr std::string_view kOfStateAndStorage[] = {
    "update_without_master",  // parameters rounded stochastically, in addition to their rule
    "gradient_bytes",         // added to sums over micro-batches
    "int8_elements",          // of saved activations, coded and decoded
    "fp8_elements",
    "weight_elements",  // decoded for a product
    "host_bytes",       // moved between device and host, both ways together
    "nvme_bytes",       // read and written
    "block_passes",     // calls of one block, forward or backward, whatever its size
};

std::vector<std::string_view> make_terms() {
  std::vector<std::string_view> terms(std::begin(kOfTheModel), std::end(kOfTheModel));
  for (const UpdateRuleFacts* rule : all_update_rules())  // unit: parameters stepped
    if (!rule->cost_term().empty()) terms.push_back(rule->cost_term());
  terms.insert(terms.end(), std::begin(kOfStateAndStorage), std::end(kOfStateAndStorage));
  return terms;
}

// FLOPs of one block's forward pass, split into the parts that can be recomputed separately.
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
          // two products of (S, E*C) and (E*C, D) per sequence
          .textbook = onehot ? 4 * b.tokens * b.experts * b.capacity * b.width : 0};
}

// FLOPs of all blocks that backward repeats from the forward pass.
struct Repeated {
  double products = 0, attention = 0;
};

Repeated repeated_flops(const Settings& s, const BlockFlops& f) {
  const double whole = recomputed_blocks(s), others = blocks_in_pieces(s);
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

void add_all(StepCost& cost, const std::vector<Cost>& more) {
  for (const Cost& one : more) cost.add(one);
}

// Of the blocks' arithmetic in a step, what their forward pass has.
double forward_share(const BlockFlops& f, const Repeated& again, double layers) {
  const double forward = layers * (f.products() + f.attention);
  return forward / (3 * forward + again.products + again.attention);
}

// Activations and products of the blocks in all micro-batches.
void add_blocks(StepCost& cost, const Settings& s, const BlockShape& b) {
  const auto layers = static_cast<double>(s.model.layers);
  const auto passes = static_cast<double>(s.train.accumulation);
  const ComputeFacts& compute = compute_facts(s.precision.compute);
  const BlockFlops f = forward_flops(s, b);
  const Repeated again = repeated_flops(s, f);
  // backward has twice the arithmetic of forward
  cost.add({compute.products, passes * (3 * layers * f.products() + again.products)});
  cost.add({compute.attention, passes * (3 * layers * f.attention + again.attention)});
  const double blocks = layers + (f.products() > 0 ? again.products / f.products() : 0) / 3;
  cost.add({"row_bytes", passes * blocks * b.element *
                             (b.tokens * (6 * b.width + b.queries + 2 * b.keys) +
                              b.expert_rows * (2 * b.width + 3 * b.hidden))});
  if (s.attention.kernel == AttentionKernel::materialised) {
    cost.add({"score_bytes",
              passes * blocks * b.element * b.tokens * static_cast<double>(s.model.heads * s.train.row())});
  }
  if (s.model.dispatch == Dispatch::onehot)
    cost.add({"dispatch_bytes", passes * blocks * 8 * b.tokens * b.experts * b.capacity});
  cost.add({"block_passes", passes * (2 * layers + recomputed_blocks(s))});
  add_all(cost, storage_costs(s, passes * saved_bytes(s)));
}

void add_head(StepCost& cost, const Settings& s, const BlockShape& b) {
  const auto passes = static_cast<double>(s.train.accumulation), vocab = static_cast<double>(s.model.vocab);
  cost.add({compute_facts(s.precision.compute).head_products, passes * 6 * b.tokens * b.width * vocab});
  cost.add({"logit_elements", passes * b.tokens * vocab});
}

// Elements that a rank adds to its sums of gradients: one for each weight that it owns and each
// micro-batch of all ranks, or first its own.
double summed_gradients(const Settings& s, const WeightCounts& weights) {
  const auto passes = static_cast<double>(s.train.accumulation), ranks = static_cast<double>(data_ranks(s));
  const double own = weights.total() / state_division(s).optimizer;
  if (ranks == 1) return passes > 1 ? passes * own : 0;
  const auto exchanges = static_cast<double>(gradient_exchanges(s));
  return (exchanges < passes ? passes * weights.total() : 0) + exchanges * ranks * own;
}

void add_update(StepCost& cost, const Settings& s, const WeightCounts& weights) {
  const UpdateRuleFacts& rule = update_rule_facts(s.optim);
  const double ranks = state_division(s).optimizer;
  const WeightCounts own{weights.in_blocks / ranks, weights.outside / ranks};
  add_all(cost, rule.costs(s.model, own));
  const bool rounded = s.precision.master == MasterWeights::none && rule.keeps_masters();
  if (rounded && s.precision.compute != ComputePrecision::fp32)
    cost.add({"update_without_master", own.total()});
  add_all(cost, state_costs(s, state_formula(s, weights)));
}

// What backward does with gradients, and what brings the blocks' weights.
void add_weights(StepCost& cost, const Settings& s, const WeightCounts& weights) {
  const auto passes = static_cast<double>(s.train.accumulation);
  cost.add({"gradient_bytes", sum_bytes(s) * summed_gradients(s, weights)});
  if (weight_code(s.precision)) cost.add({"weight_elements", weight_visits(s) * passes * weights.in_blocks});
  add_all(cost, weight_costs(s, state_formula(s, {weights.in_blocks, 0})));
}

}  // namespace

const std::vector<std::string_view>& cost_terms() {
  static const std::vector<std::string_view> terms = make_terms();
  return terms;
}

size_t index_of_term(std::string_view term) {
  const std::vector<std::string_view>& terms = cost_terms();
  const auto found = std::find(terms.begin(), terms.end(), term);
  if (found == terms.end()) throw std::logic_error("cost model: no term " + std::string(term));
  return static_cast<size_t>(found - terms.begin());
}

StepParts step_parts(const Settings& settings) {
  const BlockShape block(settings);
  const WeightCounts weights = weight_counts(settings, block);
  const BlockFlops flops = forward_flops(settings, block);
  StepParts parts;
  parts.forward_share =
      forward_share(flops, repeated_flops(settings, flops), static_cast<double>(settings.model.layers));
  add_blocks(parts.blocks, settings, block);
  add_head(parts.head, settings, block);
  const auto add_state = [&](const Settings& s, const WeightCounts& of) {
    add_weights(parts.blocks, s, of);
    add_update(parts.update, s, of);
  };
  if (settings.parallel.expert == 1) {
    add_state(settings, weights);
    return parts;
  }
  const double experts = static_cast<double>(settings.model.layers) * block.expert_parameters;
  add_state(settings, {weights.in_blocks - experts, weights.outside});
  add_state(replicas_of_experts(settings), {experts, 0});
  return parts;
}

StepCost step_cost(const Settings& settings) {
  const StepParts parts = step_parts(settings);
  StepCost cost = parts.blocks;
  cost.add(parts.head);
  cost.add(parts.update);
  return cost;
}

}  // namespace moelab
