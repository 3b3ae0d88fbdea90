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

  // Writes (B, S, 2G, d) behind the filled positions and returns all that are filled then, (B, T + S, 2G, d),
  // a view.
  at::Tensor append(const at::Tensor& kv_BSGd);

  // Writes (B, 1, 2G, d) to the positions (B) int64, which the device alone reads, and returns all P;
  // `length` stays.
  at::Tensor put(const at::Tensor& kv_B1Gd, const at::Tensor& position_B);
};

// The keys and values of every position that a model has seen, so that the next position costs one position's
// work (Transformer::next_logits). All of it is allocated at once, in the ledger as Kind::kv_cache.
class KvCache {
 public:
  // `compute` is the model's. Throws UserError for expert choice, where later tokens decide what becomes of
  // earlier ones, so that nothing can be kept.
  KvCache(const ModelSettings& model, int64_t batch, int64_t positions, c10::ScalarType compute,
          c10::Device device);

  // 2 (keys, values) * layers * batch * positions * key/value heads * head width * bytes of an element.
  static int64_t bytes(const ModelSettings& model, int64_t batch, int64_t positions, c10::ScalarType compute);

  int64_t batch() const { return layers_.front().kv_BPGd.size(0); }
  int64_t positions() const { return layers_.front().kv_BPGd.size(1); }
  int64_t length() const { return layers_.back().length; }
  LayerCache& layer(int64_t index) { return layers_[index]; }

  // That of one sequence, of batch 1, in the same memory; its length is its own, 0 at first.
  KvCache sequence(int64_t index) const;
  // Counts positions that put() has filled in all layers.
  void grow(int64_t positions);

  // Forgets all but the first `length` positions, also where a forward pass broke off between two layers.
  void truncate(int64_t length);

 private:
  explicit KvCache(std::vector<LayerCache> layers) : layers_(std::move(layers)) {}

  std::vector<LayerCache> layers_;
};

// A text's part of a forward pass over several: so many tokens, which stand behind what its cache holds.
struct CachedText {
  KvCache* cache;
  int64_t tokens;
};
// The same for one layer.
struct CachedRows {
  LayerCache* cache;
  int64_t tokens;
};

}  // namespace moelab
