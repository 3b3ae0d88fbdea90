#include <gtest/gtest.h>

#include <functional>

#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "train/checkpoint/huggingface/model_config.h"

namespace moelab {
namespace {

ModelSettings small(const std::function<void(ModelSettings&)>& change) {
  ModelSettings m;
  m.d_model = 48;
  m.heads = 4;
  change(m);
  return m;
}

std::string refusal(const std::function<void(ModelSettings&)>& change) {
  try {
    family_of(small(change), {});
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(HfFamilies, FollowFromTheNormOfQueriesAndKeys) {
  EXPECT_EQ(family_of(small([](ModelSettings&) {}), {}), HfFamily::mixtral);
  EXPECT_EQ(family_of(small([](ModelSettings& m) { m.qk_norm = QkNorm::full; }), {}), HfFamily::olmoe);
  EXPECT_EQ(family_of(small([](ModelSettings& m) { m.qk_norm = QkNorm::head; }), {}), HfFamily::qwen3_moe);
}

TEST(HfFamilies, RefuseByNameWhatNoneHas) {
  EXPECT_NE(refusal([](ModelSettings& m) { m.experts = 0; }).find("model.experts=0"), std::string::npos);
  EXPECT_NE(refusal([](ModelSettings& m) { m.shared_experts = 2; }).find("model.shared_experts=2"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelSettings& m) { m.router = RouterKind::sigmoid; }).find("model.router=sigmoid"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelSettings& m) { m.clip_qkv = 8; }).find("model.clip_qkv=8"), std::string::npos);
  EXPECT_NE(refusal([](ModelSettings& m) { m.norm_topk = false; }).find("model.norm_topk=false"),
            std::string::npos);
  EXPECT_NE(refusal([](ModelSettings& m) {
              m.qk_norm = QkNorm::full;
              m.head_dim = 16;
            }).find("model.head_dim=16"),
            std::string::npos);
}

// A written config reads back as the same model, with exactly the same numbers.
TEST(HfConfigs, ReadBackAsWritten) {
  const std::function<void(ModelSettings&)> changes[] = {[](ModelSettings& m) {
                                                           m.head_dim = 10;
                                                           m.kv_heads = 2;
                                                           m.rope_theta = 123456.789;
                                                         },
                                                         [](ModelSettings& m) {
                                                           m.qk_norm = QkNorm::full;
                                                           m.clip_qkv = 0.1;
                                                           m.norm_topk = false;
                                                           m.tie_embeddings = false;
                                                         },
                                                         [](ModelSettings& m) {
                                                           m.qk_norm = QkNorm::head;
                                                           m.norm_eps = 1e-6;
                                                           m.head_dim = 64;
                                                         }};
  for (const auto& change : changes) {
    const ModelSettings model = small(change);
    const TemporaryFolder folder;
    folder.write("config.json", hf_config_text(family_of(model, {}), model, {}, 77));
    const HfConfig config = read_hf_config(folder.path());
    EXPECT_EQ(config.family, family_of(model, {}));
    EXPECT_EQ(config.max_positions, 77);
    EXPECT_EQ(hf_config_text(config.family, config.model, config.attention, 77),
              hf_config_text(family_of(model, {}), model, {}, 77));
    EXPECT_EQ(config.model.rope_theta, model.rope_theta);
    EXPECT_EQ(config.model.norm_eps, model.norm_eps);
    EXPECT_EQ(config.model.clip_qkv, model.clip_qkv);
    EXPECT_EQ(config.model.norm_topk, model.norm_topk);
    EXPECT_EQ(config.model.tie_embeddings, model.tie_embeddings);
    EXPECT_EQ(config.model.qk_norm, model.qk_norm);
    EXPECT_EQ(config.model.head(), model.head());
    EXPECT_EQ(config.model.kv(), model.kv());
    EXPECT_EQ(config.model.experts, model.experts);
    EXPECT_EQ(config.model.d_expert, model.d_expert);
  }
}

TEST(HfConfigs, OnlyMixtralHasAWindow) {
  AttentionSettings window{.kernel = AttentionKernel::sliding_window, .window = 33};
  const ModelSettings mixtral = small([](ModelSettings&) {});
  const TemporaryFolder folder;
  folder.write("config.json", hf_config_text(family_of(mixtral, window), mixtral, window, 77));
  const HfConfig config = read_hf_config(folder.path());
  EXPECT_EQ(config.attention.kernel, AttentionKernel::sliding_window);
  EXPECT_EQ(config.attention.window, 33);
  EXPECT_THROW(family_of(small([](ModelSettings& m) { m.qk_norm = QkNorm::full; }), window), UserError);
  EXPECT_THROW(family_of(small([](ModelSettings& m) { m.qk_norm = QkNorm::head; }), window), UserError);
  window.kernel = AttentionKernel::block_sparse;
  EXPECT_THROW(family_of(mixtral, window), UserError);
}

}  // namespace
}  // namespace moelab
