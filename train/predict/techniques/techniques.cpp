#include "train/predict/techniques/techniques.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "train/predict/techniques/run_rows.h"
#include "train/settings/facts/placement.h"
#include "train/settings/facts/precision.h"
#include "train/settings/facts/ranks.h"
#include "train/settings/facts/storage.h"
#include "train/settings/facts/update_rule.h"

namespace moelab {
namespace {

constexpr std::string_view kDrive = "placement.nvme_path", kRanks = "parallel.data";

// Single techniques defined here; update rules, stores, placements and precisions define their own rows.
// `settings` are changes to the first row's settings.
std::vector<Technique> single_techniques() {
  return {
      {"baseline",
       "fp32, S x S scores, one-hot dispatch",
       {{"precision.compute", "fp32"},
        {"attention.kernel", "materialised"},
        {"model.dispatch", "onehot"},
        {"activations.checkpoint", "none"},
        {"train.micro_batch", "8"},
        {"train.accumulation", "1"}},
       "Nothing: it is the textbook's way, which the others are held against.",
       "16 P of state; 4 T (8 D + 2 E) + 4 R (2 D + 3 F) + 4 T S H + 8 T E C a block",
       {"vibee.attention_materialised", "vibee.checkpoint_none", "vibee.breakdown_7b_fp32"}},
      {"flash_attention",
       "flash attention",
       {{"attention.kernel", "flash"}},
       "Scores are computed a second time in backward and never stored.",
       "4 T H a block for 4 T S H",
       {"ava.flash_attention", "vibee.attention_flash", "ava.formula_flash_attention"}},
      {"sliding_window",
       "flash attention over a sliding window",
       {{"attention.kernel", "sliding_window"}},
       "A token sees the 256 last ones alone, and what those saw in the layers below.",
       "4 T H a block for 4 T S H",
       {"ava.sparse_attention", "ava.oom_long_sequences"}},
      {"block_sparse",
       "flash attention over the nearest blocks",
       {{"attention.kernel", "block_sparse"}},
       "A token sees its block of 64 and the 3 before it alone, and what those saw in the layers below.",
       "4 T H a block for 4 T S H",
       {"ava.sparse_attention", "ava.oom_long_sequences"}},
      {"capacity",
       "capacity buffers",
       {{"model.dispatch", "capacity"}},
       "Tokens beyond an expert's capacity are dropped in training.",
       "4 R (2 D + F) + 8 T E C a block less",
       {"parrot.memory_of_moe", "parrot.if_still_too_large"}},
      {"dropless",
       "dropless dispatch",
       {{"model.dispatch", "dropless"}},
       "Groups of uneven size, known only once the router has chosen; no token is dropped.",
       "as capacity buffers, with K T rows for R",
       {"parrot.memory_of_moe"}},
      {"bf16",
       "bf16 compute, fp32 masters",
       {{"precision.compute", "bf16"}},
       "Products and activations round to 8 bits of precision, and weights exist twice.",
       sixteen_bit_text(MasterWeights::fp32),
       {"nemo.mixed_precision", "ava.mixed_precision", "parrot.mixed_precision", "vibee.precision_7b"}},
      {"recompute_full",
       "every block recomputed",
       {{"activations.checkpoint", "full"}},
       "The forward pass of every block runs a second time.",
       "an input of T D elements a block for all that it keeps, and one block whole",
       {"vibee.checkpoint_all", "ava.gradient_checkpointing", "parrot.gradient_checkpointing",
        "verl.gradient_checkpointing"}},
      {"recompute_half",
       "half of the blocks recomputed",
       {{"activations.checkpoint", "ratio"}, {"activations.ratio", "0.5"}},
       "The forward pass of every other block runs a second time.",
       "an input of T D elements for all that a block keeps, in half of them",
       {"vibee.checkpoint_half"}},
      {"recompute_every_4",
       "every fourth block recomputed",
       {{"activations.checkpoint", "every"}, {"activations.every", "4"}},
       "The forward pass of blocks 0, 4, 8, … runs a second time.",
       "an input of T D elements for all that a block keeps, in every fourth",
       {"nemo.gradient_checkpointing", "nemo.activation_checkpointing"}},
      {"recompute_segments",
       "segments of four blocks recomputed, each from one kept input",
       {{"activations.checkpoint", "segments"}, {"activations.every", "4"}},
       "The forward pass of every block runs a second time; then four blocks' activations are there at once.",
       "an input of T D elements for all that four blocks keep, and four blocks whole",
       {"nemo.gradient_checkpointing"}},
      {"accumulation",
       "a quarter of the micro-batch, accumulated",
       {{"train.micro_batch", "2"}, {"train.accumulation", "4"}},
       "Products of a quarter of the rows, and gradients that must be kept between them.",
       "a quarter of T and R; gradients, 4 P, are held throughout",
       {"ava.smaller_batch"}},
  };
}

std::vector<Technique> recompute_techniques() {
  return {
      {"recompute_cheap",
       "norms and the experts' hidden state recomputed, capacity buffers",
       {{"activations.pieces", "[norms,expert_hidden]"}, {"model.dispatch", "capacity"}},
       "The experts' first product runs a second time.",
       "8 T D + 8 R F a block less, and as capacity buffers",
       {"parrot.memory_of_moe"}},
      {"recompute_attention",
       "the attention half recomputed",
       {{"activations.pieces", "[attention]"}},
       "Attention and its projections run a second time.",
       "20 T D + 4 T S H a block less",
       {"ava.activation_checkpointing"}},
      {"recompute_moe",
       "the MoE half recomputed, its routing kept",
       {{"activations.pieces", "[moe]"}},
       "The experts' forward pass runs a second time.",
       "4 T (D + 2 E) + 4 R (2 D + 3 F) + 8 T E C a block less",
       {"ava.activation_checkpointing"}},
  };
}

std::vector<Technique> optimizer_techniques() {
  std::vector<Technique> rows;
  for (const UpdateRuleFacts* rule : all_update_rules())
    if (const std::optional<Technique> row = rule->row()) rows.push_back(*row);
  rows.push_back({"step_in_backward",
                  "each weight stepped in backward",
                  {{"optim.in_backward", "true"}},
                  "Each gradient is clipped by its own norm, and cannot be accumulated.",
                  "the largest gradient for 4 P",
                  {"vibee.breakdown_7b_fp32"}});
  return rows;
}

const Technique& named(const std::vector<Technique>& rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Technique& row) { return row.name == name; });
  if (found == rows.end()) throw std::logic_error("techniques: no row " + std::string(name));
  return *found;
}

// A row that combines the techniques named in whole.parts.
Technique together(const std::vector<Technique>& rows, Technique whole) {
  for (const std::string_view part : whole.parts)
    whole.settings = changed(std::move(whole.settings), named(rows, part).settings);
  return whole;
}

// What a stage of ZeRO divides lies on the host, or in a file. No row moves what each rank has whole (all of
// data_parallel's state, ZeRO-1's and 2's weights): a machine would hold it once for each of its ranks.
std::vector<Technique> divided_and_away() {
  return {
      {"zero_1_host",
       "ZeRO-1, a rank's optimizer state and masters in host memory",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"ava.on_out_of_memory"},
       {"zero_1", "host_optimizer"}},
      {"zero_1_nvme",
       "ZeRO-1, a rank's optimizer state and masters in a file",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"ava.on_out_of_memory"},
       {"zero_1", "nvme_optimizer"}},
      {"zero_2_host",
       "ZeRO-2, a rank's optimizer state, masters and gradients in host memory",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"ava.on_out_of_memory"},
       {"zero_2", "host_optimizer", "host_gradients"}},
      {"zero_2_nvme",
       "ZeRO-2, a rank's optimizer state, masters and gradients in a file",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"ava.on_out_of_memory"},
       {"zero_2", "nvme_optimizer", "nvme_gradients"}},
      {"zero_3_host",
       "ZeRO-3, all of a rank's state in host memory",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"verl.profile_multi_device", "vibee.fits_70b_on_8x80gb"},
       {"zero_3", "host_weights", "host_optimizer", "host_gradients"}},
      {"zero_3_nvme",
       "ZeRO-3, all of a rank's state in a file",
       {},
       "What its parts trade.",
       "What its parts say.",
       {"ava.on_out_of_memory"},
       {"zero_3", "nvme_weights", "nvme_optimizer", "nvme_gradients"}},
      {"zero_3_int8",
       "ZeRO-3 with the blocks' weights in int8, which are gathered as such",
       {},
       "What its parts trade; int8 halves what is gathered in 16 bits.",
       "What its parts say.",
       {"vibee.precision_7b"},
       {"zero_3", "int8_weights"}},
  };
}

std::vector<Technique> make_techniques() {
  std::vector<Technique> rows = single_techniques();
  for (const auto& more :
       {precision_rows(), recompute_techniques(), storage_rows(), weight_store_rows(),
        weight_placement_rows(), optimizer_techniques(), state_placement_rows(), run_rows(), rank_rows()})
    rows.insert(rows.end(), more.begin(), more.end());
  rows.push_back(together(rows, {"int8_recompute",
                                 "every block recomputed, its input saved in int8",
                                 {},
                                 "What its parts trade.",
                                 "What its parts say.",
                                 {"vibee.int8_activations_and_checkpointing"},
                                 {"recompute_full", "int8_activations"}}));
  rows.push_back(together(rows, {"recompute_both",
                                 "every fourth block recomputed whole, of the others the cheap pieces",
                                 {},
                                 "What its parts trade.",
                                 "What its parts say.",
                                 {"nemo.preset_memory_efficient"},
                                 {"recompute_every_4", "recompute_cheap"}}));
  rows.push_back(together(
      rows, {"all_that_pays",
             "flash attention, capacity buffers, every block recomputed, compact AdamW in backward",
             {},
             "What its parts trade.",
             "What its parts say.",
             {"ava.all_defaults_combined"},
             {"flash_attention", "capacity", "recompute_full", "adamw_compact", "step_in_backward"}}));
  rows.push_back(together(rows, {"guides_stack",
                                 "what the guides' defaults switch on together",
                                 {},
                                 "What its parts trade.",
                                 "What its parts say.",
                                 {"ava.all_defaults_combined", "parrot.moe_nano"},
                                 {"flash_attention", "capacity", "bf16", "recompute_full", "accumulation"}}));
  rows.push_back(together(rows, {"host_state",
                                 "weights, gradients and optimizer state in host memory",
                                 {},
                                 "What its parts trade.",
                                 "What its parts say.",
                                 {"vibee.offload_cpu", "ava.cpu_offload"},
                                 {"host_weights", "host_gradients", "host_optimizer"}}));
  rows.push_back(together(rows, {"nvme_state",
                                 "weights, gradients and optimizer state in a file",
                                 {},
                                 "What its parts trade.",
                                 "What its parts say.",
                                 {"vibee.offload_nvme"},
                                 {"nvme_weights", "nvme_gradients", "nvme_optimizer"}}));
  for (Technique& row : divided_and_away()) rows.push_back(together(rows, std::move(row)));
  return rows;
}

}  // namespace

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> table = make_techniques();
  return table;
}

const Technique* find_technique(std::string_view name) {
  for (const Technique& technique : techniques())
    if (technique.name == name) return &technique;
  return nullptr;
}

int64_t ranks_of(const Technique& technique) {
  for (const auto& [key, value] : technique.settings)
    if (key == kRanks) return std::stoll(std::string(value));
  return 1;
}

bool is_of_machine(std::string_view key) { return key == kDrive || key == kRanks; }

Preset::Pairs changed(Preset::Pairs pairs, const Preset::Pairs& changes) {
  for (const auto& change : changes) {
    const auto known = std::find_if(pairs.begin(), pairs.end(),
                                    [&](const auto& pair) { return pair.first == change.first; });
    if (known == pairs.end())
      pairs.push_back(change);
    else
      known->second = change.second;
  }
  return pairs;
}

}  // namespace moelab
