// Every mistake gives a UserError of one line with the place, the key and what would be right.
#include <gtest/gtest.h>

#include "moe/settings/error.h"
#include "tests/temporary_folder.h"
#include "train/settings/load.h"
#include "train/settings/validate.h"
#include "train/settings/yaml_file.h"

namespace moelab {
namespace {

// The message that load_settings throws, or a text that no expectation matches.
std::string message(const Sources& sources) {
  try {
    load_settings(sources);
  } catch (const UserError& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("NOT A UserError: ") + error.what();
  }
  return "NO ERROR";
}

struct BadFile {
  std::string text, expected;
};
void PrintTo(const BadFile& bad, std::ostream* out) {
  *out << testing::PrintToString(bad.text.substr(0, 60));
}

class BadFiles : public testing::TestWithParam<BadFile> {};

TEST_P(BadFiles, AreRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.write("bad.yaml", GetParam().text);
  const std::string got = message({.config = path});
  EXPECT_EQ(got.rfind(path + ":", 0), 0u) << got;
  EXPECT_NE(got.find(GetParam().expected), got.npos)
      << "expected: " << GetParam().expected << "\ngot: " << got;
  EXPECT_EQ(got.find('\n'), got.npos) << got;
}

const char* kInteger = "train.steps: expected an integer from 0 to 1000000000000, got ";

INSTANTIATE_TEST_SUITE_P(
    UnknownAndDuplicate, BadFiles,
    testing::Values(BadFile{"train:\n  stesp: 5\n",
                            ":2: train.stesp: unknown setting; did you mean train.steps?"},
                    BadFile{"trian:\n  steps: 5\n", ":1: trian: unknown group; did you mean train?"},
                    BadFile{"train.steps: 5\n", "a key goes inside its group, e.g. train: {steps: …}"},
                    BadFile{"train:\n  steps: 5\n  seed: 1\n  steps: 6\n",
                            ":4: train.steps: given twice, first on line 2"},
                    BadFile{"train: {steps: 5}\noptim: {lr: 1}\ntrain: {seed: 6}\n",
                            ":3: train: given twice, first on line 1"},
                    BadFile{"train: {\"steps\": 5, steps: 6}\n", "train.steps: given twice"},
                    BadFile{"activations: {pieces: [], recompute_parts: []}\n", "pieces: given twice"},
                    BadFile{"train:\n  <<: {steps: 5}\n", "train.<<: unknown setting"},
                    BadFile{"train: {steps: 5, 7: 8}\n", "train.7: unknown setting"},
                    BadFile{"train: {[a]: 5}\n", "expected the name of a setting, got the list [a]"},
                    BadFile{"train: {~: 5}\n", "expected the name of a setting, got nothing (null)"},
                    BadFile{"? {a: b}\n: 5\n", "expected the name of a setting, got a group of keys"}));

INSTANTIATE_TEST_SUITE_P(
    WrongTypesForAnInteger, BadFiles,
    testing::Values(BadFile{"train: {steps: abc}", std::string(kInteger) + "abc"},
                    BadFile{"train: {steps: \"5\"}", std::string(kInteger) + "the quoted text \"5\""},
                    BadFile{"train: {steps: '5'}", std::string(kInteger) + "the quoted text \"5\""},
                    BadFile{"train: {steps: }", std::string(kInteger) + "nothing (null)"},
                    BadFile{"train: {steps: ~}", std::string(kInteger) + "nothing (null)"},
                    BadFile{"train: {steps: null}", std::string(kInteger) + "nothing (null)"},
                    BadFile{"train: {steps: true}", std::string(kInteger) + "true"},
                    BadFile{"train: {steps: 1.5}", std::string(kInteger) + "1.5"},
                    BadFile{"train: {steps: 1e3}", std::string(kInteger) + "1e3"},
                    BadFile{"train: {steps: 010}", std::string(kInteger) + "010"},
                    BadFile{"train: {steps: 0x10}", std::string(kInteger) + "0x10"},
                    BadFile{"train: {steps: 1_000}", std::string(kInteger) + "1_000"},
                    BadFile{"train: {steps: [5]}", std::string(kInteger) + "the list [5]"},
                    BadFile{"train: {steps: {a: 5}}", std::string(kInteger) + "a group of keys"},
                    BadFile{"train: {steps: -1}", std::string(kInteger) + "-1"},
                    BadFile{"train: {steps: 1000000000001}", std::string(kInteger)},
                    BadFile{"train: {steps: 99999999999999999999}", std::string(kInteger)},
                    BadFile{"train: {steps: |\n  5\n  }", "bad.yaml:"},
                    BadFile{"train:\n  steps: |\n    5\n", std::string(kInteger) + "the quoted text \"5?\""},
                    BadFile{"train: {steps: .inf}", std::string(kInteger)}));

INSTANTIATE_TEST_SUITE_P(
    WrongTypesForOthers, BadFiles,
    testing::Values(
        BadFile{"optim: {lr: fast}", "optim.lr: expected a number from 0 to 1000, got fast"},
        BadFile{"optim: {lr: .nan}", "optim.lr: expected a number"},
        BadFile{"optim: {lr: .inf}", "optim.lr: expected a number"},
        BadFile{"optim: {lr: inf}", "optim.lr: expected a number"},
        BadFile{"optim: {lr: 1e999}", "optim.lr: expected a number"},
        BadFile{"optim: {lr: \"0.1\"}", "optim.lr: expected a number"},
        BadFile{"optim: {lr: 1001}", "optim.lr: expected a number from 0 to 1000, got 1001"},
        BadFile{"optim: {clip: -1}", "optim.clip: expected a number of at least 0, got -1"},
        BadFile{"optim: {lr: 1 2}", "got 1 2"}, BadFile{"optim: {lr: 1,5}", "bad.yaml:"},
        BadFile{"optim: {betas: 0.9}", "optim.betas: expected a list such as [0.9, 0.95], each a number"},
        BadFile{"optim: {betas: [0.9, x]}", "got the list [0.9, x]"},
        BadFile{"optim: {betas: [0.9, \"0.95\"]}", "optim.betas: expected a list"},
        BadFile{"optim: {betas: [0.9, 1.0]}", "each a number from 0 to 0.999999"},
        BadFile{"optim: {betas: [[0.9], 0.95]}", "optim.betas: expected a list"},
        BadFile{"optim: {betas: \"[0.9, 0.95]\"}", "optim.betas: expected a list"},
        BadFile{"monitor: {quiet: yes}", "monitor.quiet: expected true or false, got yes"},
        BadFile{"monitor: {quiet: 1}", "monitor.quiet: expected true or false, got 1"},
        BadFile{"monitor: {quiet: \"true\"}", "monitor.quiet: expected true or false"},
        BadFile{"monitor: {quiet: True}", "monitor.quiet: expected true or false, got True"},
        BadFile{"model: {dispatch: capcity}",
                "model.dispatch: expected one of capacity, dropless, onehot, got capcity; did you mean "
                "capacity?"},
        BadFile{"activations: {pieces: [moe, nroms]}", "got the list [moe, nroms]; did you mean norms?"},
        BadFile{"activations: {pieces: [[moe]]}", "activations.pieces: expected a list"},
        BadFile{"model: {dispatch: [capacity]}", "model.dispatch: expected one of"},
        BadFile{"model: {dispatch: 0}", "model.dispatch: expected one of"},
        BadFile{"optim: {name: adam}", "optim.name: expected"},
        BadFile{"memory: {limit: 8 gigs}", "memory.limit: expected a size such as 1500000, 12GB or 8GiB"},
        BadFile{"memory: {limit: -8GiB}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: 8Gib}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: \"8\"}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: 0.3B}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: 1.2.3GB}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: 9999999999GiB}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: 99999999999999999999999999TiB}", "memory.limit: expected a size"},
        BadFile{"memory: {limit: }", "memory.limit: expected a size"},
        BadFile{"run: {name: 5}",
                "run.name: expected one line of text, got 5; text that looks like another type"},
        BadFile{"run: {name: true}", "goes in quotes"}, BadFile{"run: {name: ~}", "got nothing (null)"},
        BadFile{"run: {name: [a]}", "run.name: expected one line of text"},
        BadFile{"run: {name: \"a\\nb\"}", "run.name: expected one line of text"},
        BadFile{"model: {preset: moe-nan}", "unknown model moe-nan; did you mean moe-nano?"},
        BadFile{"model: {preset: \"\"}", "unknown model nothing"},
        BadFile{"run: {preset: gpu-8}", "unknown preset gpu-8; did you mean gpu-8gb?"},
        BadFile{"run: {preset: 8}", "run.preset: expected one line of text"}));

INSTANTIATE_TEST_SUITE_P(
    Structure, BadFiles,
    testing::Values(BadFile{"", "expected groups of settings"},
                    BadFile{"# only a comment\n", "expected groups of settings"},
                    BadFile{"- train\n", "expected groups of settings"},
                    BadFile{"train\n", "expected groups of settings, e.g. train: {steps: 20}, got train"},
                    BadFile{"train:\n", "train: expected a group of settings, got nothing (null)"},
                    BadFile{"train: 5\n", "train: expected a group of settings, got 5"},
                    BadFile{"train: [5]\n", "train: expected a group of settings, got the list [5]"},
                    BadFile{"train: {steps: 5}\n---\ntrain: {steps: 6}\n", ":2: a second document starts"},
                    BadFile{"train: &a {steps: 5}\n", ":1: anchors (&name) are not taken"},
                    BadFile{"train:\n  steps: &a 5\n  seed: *a\n", ":2: anchors"},
                    BadFile{"train:\n  steps: *a\n", ":2: not YAML"},
                    BadFile{"train: {steps: !!int \"5\"}\n", "tags (tag:yaml.org,2002:int) are not taken"},
                    BadFile{"train: !mine {steps: 5}\n", "tags (!mine) are not taken"},
                    BadFile{"train: {steps: 5\n", "not YAML"}, BadFile{"train:\n\tsteps: 5\n", "not YAML"},
                    BadFile{"train:\n  steps: 5\n seed: 6\n", "not YAML"},
                    BadFile{"train: " + std::string(20, '[') + std::string(20, ']'),
                            "nested deeper than 16 levels"},
                    BadFile{std::string(5000, '{'), "nested deeper than 16 levels"},
                    BadFile{"train: {steps: 5}\n\x04train: {steps: 6}\n", ":2: not a text file in UTF-8"},
                    BadFile{std::string("train: {steps: 5}\n\0", 19), ":2: not a text file in UTF-8"},
                    BadFile{"run: {name: \xff\xfe}\n", ":1: not a text file in UTF-8"},
                    BadFile{"train: {steps: 5}\n#" + std::string(1 << 20, 'x'), "larger than 1 MiB"}));

struct BadOverride {
  std::vector<std::string> texts;
  std::string expected;
};
void PrintTo(const BadOverride& bad, std::ostream* out) { *out << testing::PrintToString(bad.texts); }

class BadOverrides : public testing::TestWithParam<BadOverride> {};

TEST_P(BadOverrides, AreRefused) {
  const std::string got = message({.overrides = GetParam().texts});
  EXPECT_NE(got.find(GetParam().expected), got.npos)
      << "expected: " << GetParam().expected << "\ngot: " << got;
  EXPECT_EQ(got.find('\n'), got.npos) << got;
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, BadOverrides,
    testing::Values(
        BadOverride{{"train.stesp=5"},
                    "command line: train.stesp: unknown setting; did you mean train.steps?"},
        BadOverride{{"steps=5"}, "command line: steps: unknown setting; did you mean train.steps?"},
        BadOverride{{"train=5"}, "command line: train: unknown setting"},
        BadOverride{{"memory.limit=8"},
                    "memory.limit=8: a number without a unit counts bytes; write memory.limit=8GiB, or MiB"},
        BadOverride{{"train.steps.x=5"}, "unknown setting; did you mean train.steps?"},
        BadOverride{{"train.steps"}, "command line: train.steps: expected key=value"},
        BadOverride{{"=5"}, "expected key=value"}, BadOverride{{""}, "expected key=value"},
        BadOverride{{"moe-nano"}, "a name goes after --config or --preset"},
        BadOverride{{"train.steps="}, "got nothing"}, BadOverride{{"train.steps=5x"}, "got 5x"},
        BadOverride{{"train.steps=\"5\""}, "expected an integer"},
        BadOverride{{"train.steps= 5"}, "expected an integer"},
        BadOverride{{"train.steps=x", "train.steps=5"}, "command line: train.steps: expected an integer"},
        BadOverride{{"activations.layers=0, 4"}, "expected a list"},
        BadOverride{{"activations.layers=[0,]"}, "expected a list"},
        BadOverride{{"activations.layers=[0, 4"}, "expected a list"},
        BadOverride{{"activations.layers=[,]"}, "expected a list"},
        BadOverride{{"activations.layers=[[0]]"}, "expected a list"},
        BadOverride{{"activations.layers=[-1]"}, "each an integer from 0 to 4095"},
        BadOverride{{"activations.pieces=[norms, expert_hiden]"},
                    "command line: activations.pieces: expected a list such as [norms, moe], each "
                    "one of norms, attention, expert_hidden, moe, got [norms, expert_hiden]; did you "
                    "mean expert_hidden?"},
        BadOverride{{"activations.pieces=norms"}, "activations.pieces: expected a list"},
        BadOverride{{"run.name=a\nb"}, "run.name: expected one line of text, got a?b"},
        BadOverride{{"run.name=\xff"}, "run.name: expected one line of text"},
        BadOverride{{"run.device=gpu"}, "run.device: expected one of auto, cpu, cuda, got gpu"},
        BadOverride{{"run.scale=0"}, "run.scale: expected a number"},
        BadOverride{{"precision.loss_scale=-1"},
                    "precision.loss_scale: expected dynamic or a number of at least 0, got -1"},
        BadOverride{{"precision.loss_scale=auto"}, "precision.loss_scale: expected dynamic or a number"},
        BadOverride{{"precision.compute=bf16", "precision.loss_scale=dynamic", "optim.in_backward=true"},
                    "optim.in_backward=true with precision.loss_scale=dynamic"},
        BadOverride{{"run.scale=2"}, "run.scale: expected a number"},
        BadOverride{{"model.preset=moe"}, "command line: model.preset: unknown model moe"}));

INSTANTIATE_TEST_SUITE_P(
    BetweenSettings, BadOverrides,
    testing::Values(
        BadOverride{{"model.heads=5"}, "model.heads=5 does not divide model.d_model=384"},
        BadOverride{{"model.kv_heads=4"}, "model.kv_heads=4 does not divide model.heads=6"},
        BadOverride{{"model.head_dim=63"}, "model.head_dim=63 is odd"},
        BadOverride{{"model.d_model=6"}, "model.head_dim=1 is odd"},
        BadOverride{{"model.experts_per_token=5"}, "model.experts_per_token=5 is more than model.experts=4"},
        BadOverride{{"model.experts=0", "model.shared_experts=1"},
                    "model.shared_experts=1 with model.experts=0"},
        BadOverride{{"model.router=expert_choice", "model.dispatch=dropless"},
                    "fills its own capacity; set model.dispatch=capacity"},
        BadOverride{{"model.router=expert_choice", "model.capacity_factor=3"},
                    "more tokens than a sequence has"},
        BadOverride{{"activations.pieces=[norms, norms]"},
                    "activations.pieces=[norms, norms] names norms twice"},
        BadOverride{{"activations.pieces=[expert_hidden]", "model.dispatch=onehot"},
                    "activations.pieces=[expert_hidden] with model.dispatch=onehot"},
        BadOverride{{"activations.layers=[0]"}, "only activations.checkpoint=layers reads this list"},
        BadOverride{{"precision.gradient_sums=bf16"}, "only gradients in bf16 are summed in bf16"},
        BadOverride{{"memory.max_split=20MiB", "run.device=cuda"},
                    "takes whole MiB, and more than 20 of them"},
        BadOverride{{"parallel.data=2", "parallel.zero=3", "placement.reshard_after_forward=false",
                     "activations.checkpoint=segments"},
                    "what runs a segment again gathers its weights again"},
        BadOverride{{"activations.checkpoint=layers"},
                    "activations.checkpoint=layers with activations.layers=[]: list the blocks"},
        BadOverride{{"activations.checkpoint=layers", "activations.layers=[6]"}, "blocks count from 0 to 5"},
        BadOverride{{"activations.checkpoint=layers", "activations.layers=[1, 1]"}, "names a block twice"},
        BadOverride{{"optim.betas=[0.9]"}, "two numbers are expected"},
        BadOverride{{"optim.betas=[]"}, "two numbers are expected"},
        BadOverride{{"optim.min_lr=0.1"}, "optim.min_lr=0.1 is more than optim.lr=0.001"},
        BadOverride{{"memory.warning=0.89"}, "must rise in this order; they are 0.9, 0.89, 0.95, 0.97"},
        BadOverride{{"memory.emergency=0.95"}, "must rise in this order"},
        BadOverride{{"memory.critical=0.91"}, "must rise in this order"},
        BadOverride{{"parallel.pipeline=3", "model.layers=2"},
                    "parallel.pipeline=3 with parallel.chunks=1 and model.layers=2: there are more chunks"},
        BadOverride{{"parallel.pipeline=2", "parallel.chunks=2"},
                    "parallel.schedule=1f1b with parallel.chunks=2: only an interleaved"},
        BadOverride{
            {"parallel.pipeline=2", "parallel.schedule=interleaved"},
            "parallel.schedule=interleaved with parallel.chunks=1: an interleaved pipeline alternates"},
        BadOverride{{"parallel.schedule=interleaved", "parallel.chunks=2"},
                    "parallel.schedule=interleaved with parallel.pipeline=1: there is no pipeline"},
        BadOverride{
            {"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2", "model.layers=6"},
            "parallel.pipeline=2 with parallel.chunks=2 and model.layers=6: an interleaved"},
        BadOverride{{"parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.chunks=2",
                     "model.layers=8", "train.accumulation=3"},
                    "parallel.pipeline=2 with parallel.schedule=interleaved and train.accumulation=3"},
        BadOverride{{"parallel.pipeline=2", "optim.in_backward=true"},
                    "parallel.pipeline=2 with optim.in_backward"},
        BadOverride{{"parallel.pipeline=2", "sample.every=5", "sample.prompt=a"},
                    "parallel.pipeline=2 with sample.every=5: no rank has all layers"},
        BadOverride{{"parallel.pipeline=2", "reference.path=/model"},
                    "parallel.pipeline=2 with reference.path=/model"},
        BadOverride{{"parallel.pipeline=2", "train.init=/model"},
                    "parallel.pipeline=2 with train.init=/model"},
        BadOverride{{"parallel.pipeline=2", "memory.cuda_graphs=step", "run.device=cuda"},
                    "parallel.pipeline=2 with memory.cuda_graphs=step"},
        BadOverride{{"parallel.pipeline=2", "memory.dynamic_batch.enabled=true"},
                    "parallel.pipeline=2 with memory.dynamic_batch.enabled=true"},
        BadOverride{{"parallel.pipeline=2", "model.tie_embeddings=true", "placement.gradients=nvme",
                     "placement.nvme_path=."},
                    "parallel.pipeline=2 with placement.gradients=nvme and model.tie_embeddings=true"},
        BadOverride{{"parallel.tensor=3"},
                    "model.d_expert=1024 does not divide over 3 tensor-parallel ranks; try 1023 or 1026"},
        BadOverride{{"parallel.tensor=2", "model.d_expert=33"}, "model.d_expert=33 does not divide over 2"},
        BadOverride{{"parallel.tensor=2", "model.vocab=257"}, "model.vocab=257 does not divide over 2"},
        BadOverride{{"parallel.tensor=2", "model.qk_norm=full"},
                    "model.qk_norm=full cannot be tensor-parallel"},
        BadOverride{{"parallel.tensor=2", "optim.name=muon"},
                    "parallel.tensor=2 with optim.name=muon: its state"},
        BadOverride{{"parallel.tensor=2", "optim.name=adafactor"},
                    "parallel.tensor=2 with optim.name=adafactor"},
        BadOverride{{"parallel.tensor=2", "optim.name=adam_mini"},
                    "parallel.tensor=2 with optim.name=adam_mini"},
        BadOverride{{"parallel.tensor=2", "optim.name=adam8bit"},
                    "parallel.tensor=2 with optim.name=adam8bit"},
        BadOverride{{"parallel.tensor=2", "reference.path=elsewhere"},
                    "parallel.tensor=2 with reference.path=elsewhere"},
        BadOverride{{"parallel.tensor=2", "memory.cuda_graphs=decode", "run.device=cuda"},
                    "parallel.tensor=2 with memory.cuda_graphs=decode"},
        BadOverride{{"parallel.tensor=2", "memory.dynamic_batch.enabled=true"},
                    "parallel.tensor=2 with memory.dynamic_batch.enabled=true"},
        BadOverride{{"parallel.expert=3"}, "parallel.expert=3 with model.experts="},
        BadOverride{{"parallel.expert=2", "model.experts=0"}, "parallel.expert=2 with model.experts=0"},
        BadOverride{{"parallel.expert=2", "model.dispatch=onehot"},
                    "parallel.expert=2 with model.dispatch=onehot"},
        BadOverride{{"parallel.expert=2", "memory.cuda_graphs=decode", "run.device=cuda"},
                    "parallel.expert=2 with memory.cuda_graphs=decode"},
        BadOverride{{"parallel.expert=4", "optim.name=adam8bit", "model.d_model=36", "model.d_expert=20"},
                    "parallel.expert=4 with optim.name=adam8bit: this optimizer keeps blocks of 256"},
        BadOverride{{"parallel.zero=2", "placement.reshard_after_forward=false"},
                    "placement.reshard_after_forward=false with parallel.zero=2: only parallel.zero=3"},
        BadOverride{{"parallel.zero=2", "parallel.reduce=step"}, "parallel.reduce=step with parallel.zero=2"},
        BadOverride{{"parallel.zero=3", "memory.cuda_graphs=decode", "run.device=cuda"},
                    "parallel.zero=3 with memory.cuda_graphs=decode"},
        BadOverride{{"parallel.data=2", "memory.dynamic_batch.enabled=true"},
                    "parallel.data=2 with memory.dynamic_batch.enabled=true"},
        BadOverride{{"parallel.data=2", "memory.cuda_graphs=step", "run.device=cuda"},
                    "parallel.data=2 with memory.cuda_graphs=step"},
        BadOverride{{"eval.every=5", "eval.batches=0"}, "eval.every=5 with eval.batches=0"},
        BadOverride{{"run.name=a/b"}, "run.name=a/b is not a plain folder name"},
        BadOverride{{"run.name=.."}, "is not a plain folder name"},
        BadOverride{{"train.micro_batch=1000000", "train.sequence=10000"}, "more than 2^31 tokens"},
        BadOverride{{"train.tokens_per_device=4096"},
                    "train.tokens_per_device=4096 with train.micro_batch=8: packing puts all tokens"},
        BadOverride{{"train.tokens_per_device=4096", "train.micro_batch=1", "attention.kernel=materialised"},
                    "train.tokens_per_device=4096 with attention.kernel=materialised"},
        BadOverride{{"train.tokens_per_device=4096", "train.micro_batch=1", "model.router=expert_choice"},
                    "train.tokens_per_device=4096 with model.router=expert_choice"},
        BadOverride{{"sample.every=5"}, "sample.every=5 with sample.prompt=: there is no text to continue"},
        BadOverride{{"sample.every=5", "sample.prompt=a", "model.router=expert_choice"},
                    "sample.every=5 with model.router=expert_choice"},
        BadOverride{{"reference.placement=nvme"}, "reference.placement=nvme with placement.nvme_path="},
        BadOverride{
            {"memory.cuda_graphs=step", "run.device=cuda", "model.dispatch=dropless"},
            "memory.cuda_graphs=step with model.dispatch=dropless: a CUDA graph needs fixed shapes; set "
            "model.dispatch=capacity, or memory.cuda_graphs=none"},
        BadOverride{{"memory.cuda_graphs=both", "run.device=cuda", "model.dispatch=onehot"},
                    "set model.dispatch=capacity, or memory.cuda_graphs=decode"},
        BadOverride{
            {"memory.cuda_graphs=step", "run.device=cuda", "model.experts=2", "model.capacity_factor=1"},
            "memory.cuda_graphs=step with all tokens at all experts"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "activations.storage=host"},
                    "memory.cuda_graphs=step with activations.storage=host: a CUDA graph cannot copy to or "
                    "from there"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "activations.storage=nvme",
                     "placement.nvme_path=/tmp"},
                    "memory.cuda_graphs=step with activations.storage=nvme"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "placement.optimizer=host"},
                    "memory.cuda_graphs=step with placement.optimizer=host"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "placement.gradients=host"},
                    "memory.cuda_graphs=step with placement.gradients=host"},
        BadOverride{{"memory.cuda_graphs=decode", "run.device=cuda", "placement.parameters=host"},
                    "memory.cuda_graphs=decode with placement.parameters=host"},
        BadOverride{{"memory.cuda_graphs=decode", "run.device=cuda", "precision.compute=bf16",
                     "precision.store=int8"},
                    "memory.cuda_graphs=decode with precision.store=int8"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "optim.in_backward=true"},
                    "memory.cuda_graphs=step with optim.in_backward=true"},
        BadOverride{{"memory.cuda_graphs=step", "run.device=cuda", "reference.path=somewhere"},
                    "memory.cuda_graphs=step with reference.path=somewhere"},
        BadOverride{{"data.workers=0"},
                    "data.workers=0 with data.prefetch=2: batches are read ahead by workers"},
        BadOverride{{"model.layers=4096", "model.experts=4096", "model.d_expert=1048576",
                     "model.d_model=1048576", "model.heads=4096"},
                    "more than 10^15 parameters"}));

TEST(Sources, NamesAreChecked) {
  EXPECT_NE(
      message({.config = "moe-nona"}).find("neither a model, nor a file or a folder; did you mean moe-nano?"),
      std::string::npos);
  EXPECT_NE(message({.config = "/"}).find("/: no such file"), std::string::npos);
  EXPECT_NE(message({.config = "llama"}).find("a folder; moelab train --help lists the models"),
            std::string::npos);
  EXPECT_NE(message({.preset = "gpu-9gb"}).find("--preset: unknown preset gpu-9gb; did you mean gpu-8gb?"),
            std::string::npos);
  EXPECT_NE(message({.overrides = {"run.scale=1/0"}}).find("run.scale: expected a number"),
            std::string::npos);
}

TEST(Validate, SettingsMadeInCode) {
  EXPECT_NO_THROW(validate(Settings{}));
  Settings zero_heads;
  zero_heads.model.heads = 0;
  EXPECT_THROW(validate(zero_heads), UserError);
  Settings not_a_number;
  not_a_number.optim.lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(validate(not_a_number), UserError);
  Settings negative;
  negative.memory.limit = Bytes{-1};
  EXPECT_THROW(validate(negative), UserError);
}

// What conflicts with one of the two graphs does not prevent the other.
TEST(Validate, TakesTheGraphsThatCanBeCaptured) {
  const auto taken = [](const std::vector<std::string>& overrides) {
    return message({.overrides = overrides});
  };
  for (const char* graphs : {"step", "decode", "both"}) {
    EXPECT_EQ(
        taken({std::string("memory.cuda_graphs=") + graphs, "run.device=cuda", "model.dispatch=capacity"}),
        "NO ERROR");
  }
  EXPECT_EQ(taken({"memory.cuda_graphs=step", "run.device=cuda", "model.dispatch=dropless",
                   "precision.compute=bf16"}),
            "NO ERROR");
  EXPECT_EQ(taken({"memory.cuda_graphs=decode", "run.device=cuda", "model.dispatch=dropless",
                   "placement.optimizer=host", "activations.storage=host", "optim.in_backward=true"}),
            "NO ERROR");
  EXPECT_EQ(
      taken({"memory.cuda_graphs=step", "run.device=cuda", "model.experts=0", "model.dispatch=dropless"}),
      "NO ERROR");
  const std::array<bool, 4> step = {false, false, true, true}, decode = {false, true, false, true};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(captures_step(CudaGraphs(i)), step[i]);
    EXPECT_EQ(captures_decode(CudaGraphs(i)), decode[i]);
  }
}

// Whatever the bytes, the reader returns settings or throws a UserError.
TEST(Yaml, RandomDamageIsToldOrHarmless) {
  const std::string good =
      "train:\n  steps: 20\n  seed: 7\noptim: {betas: [0.9, 0.95], lr: 1e-3}\n\"run\":\n  name: \"a b\"\n";
  const std::string pieces = "{}[]:,-?&*!|>'\"%@`#\n\t ~0e.x";
  uint64_t random = 1;
  const auto below = [&](size_t n) {
    return (random = random * 6364136223846793005u + 1442695040888963407u, random >> 33) % n;
  };
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (size_t edits = 1 + below(4); edits > 0; --edits) {
      const size_t at = below(text.size());
      if (below(2))
        text[at] = pieces[below(pieces.size())];
      else
        text.erase(at, below(8));
      if (text.empty()) text = "x";
    }
    try {
      read_yaml(text, "damaged");
    } catch (const UserError&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << " for\n" << text;
    }
  }
}

}  // namespace
}  // namespace moelab
