#pragma once
#include <cstdint>

#include "train/settings/facts/update_rule.h"
#include "train/settings/settings.h"

namespace moelab {

// Sizes of one block for closed formulas, for one micro-batch of a resolved run.
struct BlockShape {
  explicit BlockShape(const Settings& settings);

  double tokens;         // T
  double width;          // D
  double queries;        // heads * head_dim
  double keys;           // kv_heads * head_dim
  double expert_rows;    // rows that pass through experts: capacity buffers, routes, or T when dense
  double hidden;         // d_expert
  double shared_hidden;  // of all shared experts together
  double capacity;       // rows of one expert for one sequence; 0: no capacity buffers
  double experts;        // 0: dense
  double element;        // bytes of an activation's element
  // parameters: attention half with both norms and the router; all experts of a rank (parallel.expert)
  double attention_parameters, expert_parameters;

  double parameters() const { return attention_parameters + expert_parameters; }
};

// Parameters outside of the blocks: embedding, final norm, and the head unless it is tied.
double outer_parameters(const ModelSettings& model);

WeightCounts weight_counts(const Settings& settings, const BlockShape& block);

// Number of blocks that are recomputed completely, alone or in a segment.
double recomputed_blocks(const Settings& settings);
// Number of blocks whose pieces are recomputed: those that are kept, and those of segments, once these have
// run again.
double blocks_in_pieces(const Settings& settings);
// Number of blocks whose input is kept.
double kept_inputs(const Settings& settings);

bool recomputes_piece(const Settings& settings, Piece piece);

}  // namespace moelab
