#include "train/settings/facts/precision.h"

#include <cmath>

#include "train/settings/facts/require.h"
#include "train/settings/facts/update_rule.h"

namespace moelab {
namespace {

void check_compute(const PrecisionSettings& p, const ModelSettings& m) {
  const bool fp8 = p.compute == ComputePrecision::fp8;
  require(!fp8 || m.dense() || m.dispatch != Dispatch::onehot,
          "precision.compute=fp8 with model.dispatch=onehot: one-hot dispatch has no fp8 products; set "
          "model.dispatch=capacity or dropless");
  require(p.master == MasterWeights::fp32 || fp8 || p.compute == ComputePrecision::bf16,
          named("precision.master", p.master) + " with " + named("precision.compute", p.compute) +
              ": weights without masters are rounded stochastically, which works for bf16 only; set "
              "precision.compute=bf16");
  require(p.gradient_sums == GradientSums::fp32 || fp8 || p.compute == ComputePrecision::bf16,
          named("precision.gradient_sums", p.gradient_sums) + " with " +
              named("precision.compute", p.compute) +
              ": only gradients in bf16 are summed in bf16; set precision.compute=bf16, or "
              "precision.gradient_sums=fp32");
  require(
      p.loss_scale.automatic() || p.compute == ComputePrecision::fp16 || p.compute == ComputePrecision::bf16,
      named("precision.loss_scale", p.loss_scale) + " with " + named("precision.compute", p.compute) +
          ": only fp16 and bf16 take a loss scale; leave it at 0");
}

void check_plain_store(const PrecisionSettings& p) {
  const std::string type = p.compute == ComputePrecision::fp8 ? "bf16" : value_text(p.compute);
  require(p.store == WeightStore::compute || value_text(p.store) == type,
          named("precision.store", p.store) + " with " + named("precision.compute", p.compute) +
              ": this precision holds weights as " + type + "; leave precision.store at compute");
}

void check_coded_store(const PrecisionSettings& p, const OptimSettings& optim) {
  const std::string store = named("precision.store", p.store);
  require(p.compute != ComputePrecision::fp32, store + " with " + named("precision.compute", p.compute) +
                                                   ": a stored 8-bit weight needs an fp32 master beside it, "
                                                   "and in fp32 the weight is its own master; set "
                                                   "precision.compute=bf16");
  require(p.master == MasterWeights::fp32,
          store + " with " + named("precision.master", p.master) +
              ": without fp32 masters the steps of training are too small for 8-bit weights; set "
              "precision.master=fp32");
  require(update_rule_facts(optim).keeps_masters(),
          store + " with " + named("optim.name", optim.name) +
              ": 8-bit weights are made from fp32 masters, which this optimizer does not keep; set "
              "precision.store=compute or another optim.name");
}

}  // namespace

const ComputeFacts& compute_facts(ComputePrecision compute) {
  static const ComputeFacts fp32{ElementType::fp32, "products_fp32", "products_fp32", "attention_fp32"},
      bf16{ElementType::bf16, "products_bf16", "products_bf16", "attention_16bit"},
      fp16{ElementType::fp16, "products_fp16", "products_fp16", "attention_16bit"},
      // products only
      fp8{ElementType::bf16, "products_fp8", "products_bf16", "attention_16bit",
          "each product converts its factors in passes of their own, one expert after another; a step is "
          "expected to take about three times as long as with precision.compute=bf16"};
  switch (compute) {
    case ComputePrecision::fp32:
      break;
    case ComputePrecision::bf16:
      return bf16;
    case ComputePrecision::fp16:
      return fp16;
    case ComputePrecision::fp8:
      return fp8;
  }
  return fp32;
}

std::optional<BlockCode> weight_code(const PrecisionSettings& precision) {
  if (precision.store == WeightStore::int8) return BlockCode::int8;
  if (precision.store == WeightStore::fp8) return BlockCode::e4m3;
  return std::nullopt;
}

bool keeps_masters(const Settings& settings) {
  return settings.precision.master == MasterWeights::fp32 &&
         update_rule_facts(settings.optim).keeps_masters();
}

void check_precision(const Settings& s) {
  check_compute(s.precision, s.model);
  weight_code(s.precision) ? check_coded_store(s.precision, s.optim) : check_plain_store(s.precision);
}

std::string sixteen_bit_text(MasterWeights master) {
  const auto bytes = [](ElementType type) { return std::to_string(bytes_of(type)); };
  const std::string here = bytes(ElementType::bf16), fp32 = bytes(ElementType::fp32);
  const std::string masters = master == MasterWeights::fp32 ? fp32 + " P of masters + " : "";
  return here + " bytes for " + fp32 + " an activation; state " + here + " P + " + masters + here + " P + " +
         std::to_string(std::llround(update_rule_facts({}).bytes_per_parameter(true))) + " P";
}

std::vector<Technique> precision_rows() {
  return {
      {"fp16",
       "fp16 compute with a dynamic loss scale, fp32 masters",
       {{"precision.compute", "fp16"}},
       "Steps whose gradients pass 65504 at the loss scale are skipped, and weights exist twice.",
       sixteen_bit_text(MasterWeights::fp32),
       {"nemo.mixed_precision", "ava.mixed_precision", "parrot.mixed_precision"}},
      {"bf16_without_masters",
       "bf16 weights without masters",
       {{"precision.compute", "bf16"}, {"precision.master", "none"}},
       "Weights keep 8 bits of precision between steps, rounded stochastically.",
       sixteen_bit_text(MasterWeights::none),
       {"ava.static_100m_fp16", "vibee.precision_7b"}},
      {"bf16_sums",
       "bf16 compute, and gradients summed over micro-batches in bf16",
       {{"precision.compute", "bf16"}, {"precision.gradient_sums", "bf16"}},
       "Each micro-batch rounds the sums to 8 bits of precision; one micro-batch alone is not summed.",
       "as bf16, with 2 P for 4 P of sums over several micro-batches",
       {"vibee.fits_7b_on_24gb"}},
      {"fp8",
       "fp8 products, bf16 activations, fp32 masters",
       {{"precision.compute", "fp8"}, {"model.dispatch", "capacity"}},
       "Factors of the blocks' products round to 4 bits of precision, gradients to 3.",
       "as bf16 and capacity buffers",
       {"vibee.precision_7b", "ava.gpu_h100_80"}},
  };
}

std::vector<Technique> weight_store_rows() {
  return {
      {"int8_weights",
       "the blocks' weights in int8 for compute, bf16 products, fp32 masters",
       {{"precision.compute", "bf16"}, {"precision.store", "int8"}},
       "Products take weights rounded to 255 steps of each block's largest; masters don't shrink.",
       "as bf16, with " + coded_bytes_text() + " bytes for 2 a weight of the blocks, two blocks unpacked",
       {"vibee.precision_7b"}},
      {"fp8_weights",
       "the blocks' weights in fp8 for compute, bf16 products, fp32 masters",
       {{"precision.compute", "bf16"}, {"precision.store", "fp8"}},
       "Products take weights with 4 significant bits; masters don't shrink.",
       "as bf16, with " + coded_bytes_text() + " bytes for 2 a weight of the blocks, two blocks unpacked",
       {"vibee.precision_7b"}},
  };
}

}  // namespace moelab
