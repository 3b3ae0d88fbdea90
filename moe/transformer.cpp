#include "moe/transformer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/document_attention.h"
#include "kernels/attention/rope.h"
#include "kernels/dense/embedding.h"
#include "kernels/dense/linear.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/memory/ledger.h"
#include "kernels/meta/simulated_device.h"
#include "moe/name_hash.h"
#include "moe/settings/rank_model.h"
#include "moe/tensor_slice.h"
#include "moe/vocabulary_slice.h"

// Axes: B sequences of S tokens, V vocabulary, D width, E experts, F expert width.
namespace moelab {
namespace {

constexpr double kDeviation = 0.02;

// The seed of a weight's first values, which depend on nothing that was made before.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  return name_hash(name, seed * 0x9E3779B97F4A7C15ull);
}

void fill_normal(const at::Tensor& fp32, double mean, double deviation, uint64_t seed) {
  if (fp32.is_meta()) return;
  if (deviation == 0) {
    fp32.fill_(mean);
    return;
  }
  at::Generator generator = at::detail::createCPUGenerator(seed);
  if (fp32.is_cpu()) {
    fp32.normal_(mean, deviation, generator);
  } else {
    fp32.copy_(at::empty(fp32.sizes(), at::kFloat).normal_(mean, deviation, generator));
  }
}

// With the values that the whole weight has there, which is made on the host for this.
void fill_part(const at::Tensor& fp32, const TensorPart& part, double deviation, uint64_t seed) {
  const HomeScope outside(Home::host);
  const auto options = at::TensorOptions().device(fp32.is_meta() ? c10::kMeta : c10::kCPU);
  const at::Tensor whole = at::empty(part.shape, options.dtype(at::kFloat));
  fill_normal(whole, 0, deviation, seed);
  fp32.view(-1).copy_(cut(whole, part, fp32.numel()));
}

}  // namespace

at::Tensor Transformer::add_matrix(const std::string& name, std::vector<int64_t> shape, double deviation,
                                   bool expert, int64_t heads, int64_t head_rows) {
  return add_matrix({name, {}, {}, {}, true, expert, heads, head_rows}, std::move(shape), deviation);
}

// A weight with a matrix for each expert.
at::Tensor Transformer::add_experts(const std::string& name, std::vector<int64_t> shape, double deviation) {
  Parameter parameter{name, {}, {}, {}, true, true};
  parameter.exchanged = options_.exchange != nullptr;
  return add_matrix(std::move(parameter), std::move(shape), deviation);
}

// `shape` is the whole weight's; this rank may have a part of it.
at::Tensor Transformer::add_matrix(Parameter parameter, std::vector<int64_t> shape, double deviation) {
  TensorPart part{.shape = shape};
  if (options_.tensor) {
    part.slice = tensor_slice(model_, parameter.name, options_.tensor->rank(), options_.tensor->size());
    if (!part.slice.whole()) shape.at(part.slice.dim) = part.slice.count();
  }
  if (parameter.exchanged) {
    const Communicator& ranks = options_.exchange->ranks();
    shape.front() /= ranks.size();
    part.first = c10::multiply_integers(shape) * ranks.rank();
  }
  if (shape != part.shape) parameter.part = part;
  const bool fp32 = options_.compute == at::kFloat;
  const auto device = at::TensorOptions().device(options_.device);
  const Kind own = parameter.expert ? Kind::parameter_experts : Kind::parameters;
  at::Tensor master, value;
  {
    KindScope kind(fp32 ? own : Kind::master);
    master = at::empty(shape, device.dtype(at::kFloat));
  }
  const uint64_t seed = seed_of(options_.seed, parameter.name);
  parameter.part ? fill_part(master, *parameter.part, deviation, seed)
                 : fill_normal(master, 0, deviation, seed);
  if (fp32) {
    value = master;
  } else {
    KindScope kind(own);
    value = master.to(options_.compute);
  }
  value.requires_grad_();
  parameter.value = value;
  if (options_.masters || fp32) parameter.master = std::move(master);
  parameter.hidden = parameter.name.starts_with("blocks.");
  parameters_.push_back(std::move(parameter));
  if (options_.made) options_.made(parameters_.back());
  return value;
}

at::Tensor Transformer::add_fp32(const std::string& name, at::IntArrayRef shape, double deviation,
                                 double mean) {
  KindScope kind(Kind::parameters);
  at::Tensor value = at::empty(shape, at::TensorOptions().device(options_.device).dtype(at::kFloat));
  fill_normal(value, mean, deviation, seed_of(options_.seed, name));
  value.requires_grad_();
  const bool decays = shape.size() > 1;
  parameters_.push_back({name, value, value, {}, decays, false});
  if (options_.made) options_.made(parameters_.back());
  return value;
}

void Transformer::add_feed_forward(const std::string& prefix, MoeWeights& w, double residual) {
  const int64_t D = model_.d_model, F = model_.d_expert, E = model_.experts;
  if (!model_.dense()) {
    w.router_ED = add_fp32(prefix + "router", {E, D}, kDeviation, 0);
    if (model_.router == RouterKind::sigmoid) {
      KindScope kind(Kind::parameters);
      w.bias_E = at::zeros({E}, w.router_ED.options().requires_grad(false));
      buffers_.push_back({prefix + "router_bias", w.bias_E});
    }
    w.w13_E2FD = add_experts(prefix + "experts.w13", {E, 2 * F, D}, kDeviation);
    w.w2_EDF = add_experts(prefix + "experts.w2", {E, D, F}, residual);
  }
  const int64_t shared = model_.dense() ? F : F * model_.shared_experts;
  if (shared > 0) {
    const std::string name = prefix + (model_.dense() ? "ffn" : "shared");
    w.shared13_2FD = add_matrix(name + ".w13", {2 * shared, D}, kDeviation, !model_.dense());
    w.shared2_DF = add_matrix(name + ".w2", {D, shared}, residual, !model_.dense());
  }
}

void Transformer::add_block(int64_t layer) {
  const int64_t D = model_.d_model, d = model_.head(), heads = model_.heads, kv = model_.kv();
  const int64_t own_heads = blocks_model_.heads + blocks_model_.kv();
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(model_.layers));
  const std::string prefix = "blocks." + std::to_string(layer) + ".";
  BlockWeights w;
  w.attention_norm_D = add_fp32(prefix + "attention_norm", {D}, 0, 1);
  w.qkv_WD = add_matrix(prefix + "qkv", {(heads + 2 * kv) * d, D}, kDeviation, false, own_heads, d);
  if (model_.qk_norm != QkNorm::none) {
    const bool by_head = model_.qk_norm == QkNorm::head;
    w.q_norm = add_fp32(prefix + "q_norm", {by_head ? d : heads * d}, 0, 1);
    w.k_norm = add_fp32(prefix + "k_norm", {by_head ? d : kv * d}, 0, 1);
  }
  w.out_DW = add_matrix(prefix + "attention_out", {D, heads * d}, residual);
  w.moe_norm_D = add_fp32(prefix + "moe_norm", {D}, 0, 1);
  w.moe.fp8 = options_.fp8;
  add_feed_forward(prefix, w.moe, residual);
  blocks_.push_back(std::move(w));
}

Transformer::Transformer(const ModelSettings& model, const AttentionSettings& attention,
                         const TransformerOptions& options)
    : model_(model),
      blocks_model_(options.tensor ? rank_model(model, options.tensor->size()) : model),
      attention_(attention),
      options_(options),
      reducer_(options.tensor ? Reducer(*options.tensor) : Reducer()) {
  Stage& stage = options_.stage;
  TORCH_CHECK(stage.first >= 0 && stage.first <= model.layers && stage.count >= 0, "a stage of ", stage.count,
              " blocks from block ", stage.first, " of ", model.layers);
  stage.count = std::min(stage.count, model.layers - stage.first);
  TORCH_CHECK(stage.chunks == 1 || stage.layer(stage.blocks() - 1) < model.layers, stage.chunks,
              " chunks of ", stage.count, " blocks from block ", stage.first, ", ", stage.stride,
              " apart, of ", model.layers);
  if (stage.embedding || (stage.head && model.tie_embeddings)) {
    embedding_VD_ = add_matrix("embedding", {model.vocab, model.d_model}, kDeviation);
  }
  stats_.resize(stage.blocks());
  blocks_.reserve(stage.blocks());
  for (int64_t i = 0; i < stage.blocks(); ++i) add_block(stage.layer(i));
  if (!stage.head) return;
  final_norm_D_ = add_fp32("final_norm", {model.d_model}, 0, 1);
  head_VD_ =
      model.tie_embeddings ? embedding_VD_ : add_matrix("head", {model.vocab, model.d_model}, kDeviation);
}

const at::Tensor& Transformer::rope(int64_t sequence) {
  if (!rope_.defined() || rope_.size(0) != sequence) {
    rope_ = rope_table(sequence, model_.head(), model_.rope_theta, options_.device);
  }
  return rope_;
}

at::Tensor Transformer::cached_rope(std::span<const CachedText> texts) const {
  KindScope kind(Kind::activations);
  std::vector<at::Tensor> tables;
  for (const CachedText& text : texts) {
    tables.push_back(
        rope_table(text.tokens, model_.head(), model_.rope_theta, options_.device, text.cache->length()));
  }
  return tables.size() == 1 ? tables[0] : at::cat(tables);
}

// The table's row for each token, by its position in its document; for padding any row.
at::Tensor Transformer::rope_in(const at::Tensor& documents_BS) {
  const at::Tensor in_row = at::arange(documents_BS.size(1), documents_BS.options());
  const at::Tensor place = (in_row - documents_BS.clamp_min(0)).flatten();
  return rope(documents_BS.size(1)).index_select(0, place);
}

at::Tensor Transformer::on_device(const at::Tensor& batch) const {
  return batch.to(options_.device, /*non_blocking=*/true);
}

TokenPositions Transformer::places_of(int64_t sequence, const Documents& documents) {
  KindScope kind(Kind::activations);
  if (!documents.begin_BS.defined()) return {.rope = rope(sequence)};
  const at::Tensor begin_BS = on_device(documents.begin_BS);
  TokenPositions places{.rope = rope_in(begin_BS), .documents = begin_BS};
  places.starts.longest = options_.longest_document;
  if (on_cuda(begin_BS) && options_.compute != at::kFloat && documents.room > 0)
    places.starts = document_starts(begin_BS, options_.longest_document, documents.room);
  return places;
}

at::Tensor Transformer::embedded(const at::Tensor& tokens_BS) const {
  if (!options_.tensor) return moelab::embedding(embedding_VD_, tokens_BS);
  return reducer_.leave(sliced_embedding(embedding_VD_, tokens_BS, *options_.tensor));
}

Hidden Transformer::embed(const at::Tensor& tokens_BS, BlockRunner& runner) {
  TORCH_CHECK(options_.stage.embedding, "this stage has no embedding");
  KindScope kind(Kind::activations);
  Hidden h;
  runner.use(OuterWeight::embedding, [&] { h.x_BSD = embedded(on_device(tokens_BS)); });
  h.balance_loss = at::zeros({}, h.x_BSD.options().dtype(at::kFloat));
  h.z_loss = at::zeros_like(h.balance_loss);
  return h;
}

BlockFunction Transformer::block(int64_t index, bool training, const TokenPositions& places,
                                 std::vector<CachedRows> rows, SelectiveRecompute* pieces) {
  return [this, index, training, places, rows = std::move(rows), pieces](const at::Tensor& x,
                                                                         RoutingState& routing) {
    return block_forward(x, blocks_[index],
                         {.model = blocks_model_,
                          .attention = attention_,
                          .places = places,
                          .training = training,
                          .stats = training ? &stats_[index] : nullptr,
                          .texts = rows,
                          .pieces = pieces,
                          .reducer = reducer_,
                          .exchange = options_.exchange},
                         routing);
  };
}

Hidden Transformer::run(Hidden h, bool training, BlockRunner& runner, const TokenPositions& places,
                        std::span<const CachedText> texts, int64_t chunk) {
  KindScope kind(Kind::activations);
  const Stage& stage = options_.stage;
  const int64_t end = (chunk + 1) * stage.count, together = at::GradMode::is_enabled() ? runner.segment() : 1;
  for (int64_t i = chunk * stage.count; i < end; i += together) {
    const int64_t behind = std::min(i + together, end);
    const auto blocks = [this, i, behind, training, &runner, places, texts](Hidden in) {
      for (int64_t b = i; b < behind; ++b) in = run_block(std::move(in), b, training, runner, places, texts);
      return in;
    };
    h = runner.run_segment(stage.layer(behind - 1) + 1, std::move(h), blocks);
  }
  return h;
}

Hidden Transformer::run_block(Hidden h, int64_t index, bool training, BlockRunner& runner,
                              const TokenPositions& places, std::span<const CachedText> texts) {
  const double share = 1.0 / static_cast<double>(model_.layers);
  const int64_t layer = options_.stage.layer(index);
  std::vector<CachedRows> rows;
  for (const CachedText& text : texts) rows.push_back({&text.cache->layer(layer), text.tokens});
  SelectiveRecompute* const pieces = at::GradMode::is_enabled() ? runner.pieces(layer) : nullptr;
  const BlockOutput output =
      runner.run(layer, h.x_BSD, block(index, training, places, std::move(rows), pieces));
  h.x_BSD = output.x_BSD;
  h.balance_loss = h.balance_loss.add(output.balance_loss, share);
  h.z_loss = h.z_loss.add(output.z_loss, share);
  return h;
}

Hidden Transformer::run_blocks(Hidden h, bool training, BlockRunner& runner, const Documents& documents,
                               int64_t chunk) {
  const TokenPositions places = places_of(h.x_BSD.size(1), documents);
  return run(std::move(h), training, runner, places, {}, chunk);
}

at::Tensor Transformer::final_norm(const at::Tensor& x_BSD) const {
  TORCH_CHECK(options_.stage.head, "this stage has no head");
  KindScope kind(Kind::activations);
  return rms_norm(x_BSD, final_norm_D_, model_.norm_eps);
}

LossParts Transformer::losses(Hidden h, const at::Tensor& targets_BS, BlockRunner& runner,
                              const ForwardContext& context) {
  h.x_BSD = final_norm(h.x_BSD);
  const at::Tensor x_TD = h.x_BSD.flatten(0, 1), targets_T = on_device(targets_BS).flatten();
  LossParts parts;
  parts.balance_loss = h.balance_loss;
  parts.z_loss = h.z_loss;
  runner.use(OuterWeight::head, [&] {
    if (options_.tensor) {
      parts.cross_entropy = parts.head = sliced_cross_entropy(reducer_.enter(x_TD), head_VD_, targets_T,
                                                              *options_.tensor, context.loss_scale);
    } else if (context.reference) {
      const ComparedLoss loss =
          compared_cross_entropy(x_TD, head_VD_, targets_T, *context.reference, context.loss_scale);
      parts.cross_entropy = loss.cross_entropy;
      parts.head = loss.objective;
      parts.reference_kl = loss.divergence;
    } else {
      parts.cross_entropy = parts.head = linear_cross_entropy(x_TD, head_VD_, targets_T, context.loss_scale);
    }
  });
  return parts;
}

LossParts Transformer::forward(const at::Tensor& tokens_BS, const at::Tensor& targets_BS, bool training,
                               BlockRunner& runner, const ForwardContext& context) {
  return losses(run_blocks(embed(tokens_BS, runner), training, runner, context.documents), targets_BS, runner,
                context);
}

ReferenceHead Transformer::reference(const at::Tensor& tokens_BS, BlockRunner& runner, double weight,
                                     const Documents& documents) {
  at::NoGradGuard no_grad;
  const at::Tensor x_BSD = final_norm(run_blocks(embed(tokens_BS, runner), true, runner, documents).x_BSD);
  return {x_BSD.flatten(0, 1), head_VD_, weight};
}

at::Tensor Transformer::decode(const at::Tensor& tokens_BS, BlockRunner& runner, const TokenPositions& places,
                               std::span<const CachedText> texts) {
  return final_norm(run(embed(tokens_BS, runner), false, runner, places, texts).x_BSD);
}

at::Tensor Transformer::logits_of(const at::Tensor& x_TD, BlockRunner& runner) const {
  at::Tensor logits;
  runner.use(OuterWeight::head, [&] { logits = moelab::linear(x_TD, head_VD_); });
  return options_.tensor ? whole_logits(logits, *options_.tensor) : logits;
}

at::Tensor Transformer::logits(const at::Tensor& tokens_BS, BlockRunner& runner) {
  return logits_of(decode(tokens_BS, runner, places_of(tokens_BS.size(1))), runner);
}

at::Tensor Transformer::next_logits(const at::Tensor& tokens_BS, KvCache& cache, BlockRunner& runner) {
  at::NoGradGuard no_grad;
  const CachedText text{&cache, tokens_BS.size(1)};
  const at::Tensor x_BSD = decode(tokens_BS, runner, {.rope = cached_rope({&text, 1})}, {&text, 1});
  return logits_of(x_BSD.select(1, x_BSD.size(1) - 1), runner);
}

at::Tensor Transformer::next_logits(const at::Tensor& tokens_1S, std::span<const CachedText> texts,
                                    BlockRunner& runner) {
  at::NoGradGuard no_grad;
  const at::Tensor x_SD = decode(tokens_1S, runner, {.rope = cached_rope(texts)}, texts)[0];
  std::vector<at::Tensor> last;
  int64_t end = 0;
  for (const CachedText& text : texts) last.push_back(x_SD.select(0, (end += text.tokens) - 1));
  TORCH_CHECK(end == x_SD.size(0), "next_logits: ", x_SD.size(0), " tokens for texts of ", end);
  return logits_of(at::stack(last), runner);
}

at::Tensor Transformer::next_logits(const at::Tensor& tokens_B, const TokenPositions& places, KvCache& cache,
                                    BlockRunner& runner) {
  at::NoGradGuard no_grad;
  const CachedText all{&cache, tokens_B.size(0)};
  return logits_of(decode(tokens_B.unsqueeze(0), runner, places, {&all, 1})[0], runner);
}

at::Tensor Transformer::objective(const LossParts& parts) const {
  if (model_.dense()) return parts.head;
  return parts.head.add(parts.balance_loss, model_.balance_loss).add(parts.z_loss, model_.z_loss);
}

void Transformer::reset_routing_stats() {
  for (RoutingStats& stats : stats_) {
    if (!stats.load_E.defined()) continue;
    stats.load_E.zero_();
    stats.dropped.zero_();
  }
}

std::vector<at::Tensor> Transformer::next_router_biases() const {
  std::vector<at::Tensor> biases;
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    const at::Tensor &bias = blocks_[layer].moe.bias_E, &load = stats_[layer].load_E;
    if (bias.defined()) biases.push_back(load.defined() ? next_router_bias(bias, load) : bias);
  }
  return biases;
}

void Transformer::set_router_biases(const std::vector<at::Tensor>& biases) {
  for (size_t layer = 0; layer < biases.size(); ++layer) blocks_[layer].moe.bias_E.copy_(biases[layer]);
}

}  // namespace moelab
