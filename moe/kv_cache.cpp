#include "moe/kv_cache.h"

#include <ATen/ATen.h>

#include "kernels/memory/ledger.h"
#include "moe/settings/error.h"

namespace moelab {

at::Tensor LayerCache::append(const at::Tensor& kv_BSGd) {
  const int64_t S = kv_BSGd.size(1);
  TORCH_CHECK(length + S <= kv_BPGd.size(1), "KvCache: ", S, " positions behind ", length, " of ",
              kv_BPGd.size(1));
  TORCH_CHECK(kv_BSGd.size(0) == kv_BPGd.size(0), "KvCache: batch ", kv_BSGd.size(0), ", not ",
              kv_BPGd.size(0));
  kv_BPGd.narrow(1, length, S).copy_(kv_BSGd);
  length += S;
  return kv_BPGd.narrow(1, 0, length);
}

at::Tensor LayerCache::put(const at::Tensor& kv_B1Gd, const at::Tensor& position_B) {
  kv_BPGd.scatter_(1, position_B.view({-1, 1, 1, 1}).expand(kv_B1Gd.sizes()), kv_B1Gd);
  return kv_BPGd;
}

KvCache::KvCache(const ModelSettings& model, int64_t batch, int64_t positions, c10::ScalarType compute,
                 c10::Device device) {
  if (model.router == RouterKind::expert_choice && !model.dense()) {
    throw UserError(
        "model.router=expert_choice cannot generate: experts choose among all tokens of a text, later ones "
        "included; train with model.router=softmax or sigmoid for that");
  }
  KindScope kind(Kind::kv_cache);
  const auto options = at::TensorOptions().device(device).dtype(compute);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    // zeros, because what a mask hides is multiplied by 0, and the product must be 0
    layers_.push_back({at::zeros({batch, positions, 2 * model.kv(), model.head()}, options)});
  }
}

int64_t KvCache::bytes(const ModelSettings& model, int64_t batch, int64_t positions,
                       c10::ScalarType compute) {
  return 2 * model.layers * batch * positions * model.kv() * model.head() *
         static_cast<int64_t>(c10::elementSize(compute));
}

KvCache KvCache::sequence(int64_t index) const {
  std::vector<LayerCache> layers;
  for (const LayerCache& layer : layers_) layers.push_back({layer.kv_BPGd.narrow(0, index, 1)});
  return KvCache(std::move(layers));
}

void KvCache::grow(int64_t positions) {
  for (LayerCache& layer : layers_) layer.length += positions;
}

void KvCache::truncate(int64_t length) {
  for (LayerCache& layer : layers_) {
    TORCH_CHECK(length <= layer.length, "KvCache: ", length, " positions of ", layer.length);
    layer.length = length;
  }
}

}  // namespace moelab
