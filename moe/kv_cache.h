#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <utility>
#include <vector>

#include "moe/settings/model_settings.h"

// Axes: B sequences, P positions at most, T of them filled, S new ones, G key/value heads, d head width.
namespace moelab {

// One layer's part of a KvCache.
struct LayerCache {
  at::Tensor kv_BPGd;  // (B, P, 2G, d) compute: rotated keys, then values, packed as in the block's qkv
  int64_t length = 0;  // T

  // Writes (B, S, 2G, d) after the filled positions; returns a view of all that are filled then, (B, T + S,
  // 2G, d).
  at::Tensor append(const at::Tensor& kv_BSGd);

  // Writes (B, 1, 2G, d) at the positions (B) int64, which only the device reads; returns all P positions.
  // `length` does not change.
  at::Tensor put(const at::Tensor& kv_B1Gd, const at::Tensor& position_B);
};

// The keys and values of every position that a model has seen, so that the next position costs one position's
// work (Transformer::next_logits). Allocated all at once, in the ledger as Kind::kv_cache.
class KvCache {
 public:
  // `compute`: the model's. Throws UserError for expert choice: there later tokens decide what becomes of
  // earlier ones, so nothing can be kept.
  KvCache(const ModelSettings& model, int64_t batch, int64_t positions, c10::ScalarType compute,
          c10::Device device);

  // 2 (keys, values) * layers * batch * positions * key/value heads * head width * bytes of an element.
  static int64_t bytes(const ModelSettings& model, int64_t batch, int64_t positions, c10::ScalarType compute);

  int64_t batch() const { return layers_.front().kv_BPGd.size(0); }
  int64_t positions() const { return layers_.front().kv_BPGd.size(1); }
  int64_t length() const { return layers_.back().length; }
  LayerCache& layer(int64_t index) { return layers_[index]; }

  // A cache of batch 1 for one sequence, in the same memory. Its length is its own, 0 at first.
  KvCache sequence(int64_t index) const;
  // Adds positions that put() has filled to every layer's length.
  void grow(int64_t positions);

  // Forgets all but the first `length` positions, even if a forward pass broke off between two layers.
  void truncate(int64_t length);

 private:
  explicit KvCache(std::vector<LayerCache> layers) : layers_(std::move(layers)) {}

  std::vector<LayerCache> layers_;
};

// One text's part of a forward pass over several texts: its cache, and the number of its new tokens, which
// follow what the cache holds.
struct CachedText {
  KvCache* cache;
  int64_t tokens;
};
// As CachedText, for one layer.
struct CachedRows {
  LayerCache* cache;
  int64_t tokens;
};

}  // namespace moelab
