#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/data/dataset.h"
#include "train/data/tokenizer/tokenizer.h"
#include "train/generate/batch.h"
#include "train/generate/sample_text.h"
#include "train/settings/settings.h"

namespace moelab {

// The samples that a run writes every sample.every steps: each prompt of sample.prompt, continued by at most
// 64 tokens at temperature 0.8. They are printed and appended to samples.jsonl in run.dir as {"step",
// "prompt", "text", "tokens", "tokens_per_second"}; the speed is over all texts of the step. The texts depend
// only on the weights, train.seed, the step and the prompt's number; training's random numbers are not
// touched.
class RunSamples {
 public:
  // Reads nothing when sample.every is 0. Throws UserError for a file that cannot be read, prompts that are
  // empty or too long, data without a tokenizer, and as sample_limits().
  RunSamples(const Settings& settings, const Dataset& data);

  // Drops the lines of steps after `step`; 0 empties the file.
  void go_on_after(int64_t step) const;

  // Returns the texts. Throws c10::OutOfMemoryError before anything is printed, and UserError when the file
  // cannot be written or the logits are not finite. Writes nothing once `stop` returns true.
  std::vector<SampleText> write(int64_t step, Transformer& model, BlockRunner& runner,
                                const std::function<bool()>& stop);

  // Writes half as many texts at a time, with half the tokens per pass; false if it was one already.
  bool halve();
  int64_t texts_at_a_time() const { return limits_.sequences; }

 private:
  std::vector<SampleText> show(int64_t step, const std::vector<Generated>& texts) const;

  Settings settings_;
  std::filesystem::path file_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<std::string> prompts_;
  std::vector<std::vector<int64_t>> ids_;
  BatchLimits limits_;
};

}  // namespace moelab
