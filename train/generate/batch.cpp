#include "train/generate/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "train/generate/decode_step.h"
#include "train/generate/scheduler.h"

namespace moelab {
namespace {

using Clock = std::chrono::steady_clock;

// A prompt and its continuation.
class Text {
 public:
  Text(const std::vector<int64_t>& prompt, const GenerateOptions& options, size_t number)
      : ids_(prompt), sampler_(of_text(options.sampling, number)) {}

  std::span<const int64_t> unread(int64_t count) const { return std::span(ids_).subspan(read_, count); }
  bool new_here() const { return read_ == 0; }
  void was_read(int64_t count) { read_ += count; }

  // Chooses the token after all that was read, from logits (V) fp32. False: the text has ended.
  bool write(std::span<const float> logits, const GenerateOptions& options, int64_t positions) {
    const int64_t id = sampler_(logits);
    if (id == options.end_of_text) return end(Ending::end_of_text);
    ids_.push_back(id);
    result_.tokens.push_back(id);
    if (static_cast<int64_t>(result_.tokens.size()) == options.max_tokens) return end(Ending::max_tokens);
    return read_ < positions || end(Ending::positions);
  }

  Generated& result() { return result_; }

 private:
  static SamplingOptions of_text(SamplingOptions options, size_t number) {
    options.stream += number;
    return options;
  }
  bool end(Ending ending) {
    result_.ending = ending;
    return false;
  }

  std::vector<int64_t> ids_;
  int64_t read_ = 0;  // number of ids_ that the model has read
  Sampler sampler_;
  Generated result_;
};

// The texts of one call and their shared state.
class Batch {
 public:
  Batch(Transformer& model, BlockRunner& runner, const std::vector<std::vector<int64_t>>& prompts,
        const GenerateOptions& options, const BatchLimits& limits)
      : model_(model),
        runner_(runner),
        options_(options),
        limits_(limits),
        scheduler_(limits.sequences, limits.batched_tokens),
        cache_(model.block_settings(), limits.sequences, limits.positions, model.compute(), model.device()) {
    for (const auto& prompt : prompts) {
      check_prompt(prompt, limits.positions);
      texts_.emplace_back(prompt, options, scheduler_.add(static_cast<int64_t>(prompt.size())));
    }
    for (int64_t i = 0; i < limits.sequences; ++i) caches_.push_back(cache_.sequence(i));
    if (options.captured) decode_.emplace(model, runner, cache_);
  }

  // False when nothing is left to do.
  bool pass() {
    const std::vector<TextScheduler::Part> parts = scheduler_.next();
    if (parts.empty()) return false;
    const at::Tensor logits = decode_ && single_tokens(parts) ? decode(parts) : read(parts);
    if (logits.is_meta()) return false;
    ++passes_;
    for (size_t i = 0; i < parts.size(); ++i) {
      Text& text = texts_[parts[i].text];
      text.was_read(parts[i].tokens);
      const std::span row(logits.const_data_ptr<float>() + static_cast<int64_t>(i) * logits.size(1),
                          static_cast<size_t>(logits.size(1)));
      const bool goes_on = !parts[i].ends_unread || text.write(row, options_, limits_.positions);
      goes_on ? scheduler_.advance(parts[i]) : scheduler_.close(parts[i]);
    }
    return true;
  }

  std::vector<Generated> results(double seconds) {
    std::vector<Generated> all;
    for (Text& text : texts_) {
      text.result().steps = passes_;
      text.result().step_seconds = seconds;
      all.push_back(std::move(text.result()));
    }
    return all;
  }

 private:
  bool single_tokens(const std::vector<TextScheduler::Part>& parts) const {
    return std::all_of(parts.begin(), parts.end(), [&](const TextScheduler::Part& part) {
      return part.tokens == 1 && !texts_[part.text].new_here();
    });
  }

  // As read(). Cache places without a part take part too; what they write is overwritten before it is used.
  at::Tensor decode(const std::vector<TextScheduler::Part>& parts) {
    std::vector<DecodeStep::Next> next;
    for (const KvCache& cache : caches_) next.push_back({0, std::min(cache.length(), limits_.positions - 1)});
    std::vector<int64_t> places;
    for (const TextScheduler::Part& part : parts) {
      next[static_cast<size_t>(part.place)].token = texts_[part.text].unread(1).front();
      places.push_back(part.place);
    }
    const at::Tensor logits = decode_->read(next);
    for (const int64_t place : places) caches_[static_cast<size_t>(place)].grow(1);
    return logits.index_select(0, at::tensor(places, at::kLong));
  }

  // Logits (parts, V) fp32 after each part, on the CPU or on meta.
  at::Tensor read(const std::vector<TextScheduler::Part>& parts) {
    std::vector<int64_t> ids;
    std::vector<CachedText> cached;
    for (const TextScheduler::Part& part : parts) {
      KvCache& cache = caches_[static_cast<size_t>(part.place)];
      if (texts_[part.text].new_here()) cache.truncate(0);
      const auto unread = texts_[part.text].unread(part.tokens);
      ids.insert(ids.end(), unread.begin(), unread.end());
      cached.push_back({&cache, part.tokens});
    }
    const at::Tensor tokens_1S = at::tensor(ids, at::kLong).unsqueeze(0).to(model_.device());
    const at::Tensor logits = model_.next_logits(tokens_1S, cached, runner_).to(at::kFloat).contiguous();
    return logits.is_meta() ? logits : logits.cpu();
  }

  Transformer& model_;
  BlockRunner& runner_;
  const GenerateOptions& options_;
  const BatchLimits& limits_;
  TextScheduler scheduler_;
  std::vector<Text> texts_;
  KvCache cache_;                // for all places
  std::vector<KvCache> caches_;  // each place's part of cache_
  std::optional<DecodeStep> decode_;
  int64_t passes_ = 0;
};

}  // namespace

std::vector<Generated> generate_batch(Transformer& model, BlockRunner& runner,
                                      const std::vector<std::vector<int64_t>>& prompts,
                                      const GenerateOptions& options, const BatchLimits& limits,
                                      const std::function<bool()>& stop) {
  const auto start = Clock::now();
  Batch batch(model, runner, prompts, options, limits);
  while (batch.pass())
    if (stop && stop()) return {};
  return batch.results(std::chrono::duration<double>(Clock::now() - start).count());
}

}  // namespace moelab
