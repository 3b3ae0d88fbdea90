#include "train/program/record/progress.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <numbers>

#include "kernels/memory/report.h"
#include "train/io/terminal.h"
#include "train/settings/convert.h"
#include "train/settings/facts/precision.h"
#include "train/settings/presets/parameter_count.h"

namespace moelab {
namespace {

// ", 48% of the GEMM rate", with the given text before it; empty where that rate is not known.
std::string share_of_gemm(const char* before, const RunRecord& record, double rate) {
  const double share = record.median_flops_per_second() / rate;
  return rate > 0 && std::isfinite(share) ? fmt::format("{}{:.0f}% of the GEMM rate", before, 100 * share)
                                          : "";
}

// Nothing where no step waited.
void print_waits(const RunRecord& record) {
  const auto line = [&](Home home, const char* away) {
    const RunRecord::Waits waits = record.waits_for(home);
    if (waits.steps == 0) return;
    print_line(fmt::format("waited for what is {}: {:.2f} s, {:.1f}% of the time of all steps, in {}", away,
                           waits.seconds, 100 * waits.share, counted(waits.steps, "step", "steps")));
  };
  line(Home::host, "on the host");
  line(Home::nvme, "in a file");
}

}  // namespace

std::string human_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (value >= 1e9) return fmt::format("{:.3g}B", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return std::to_string(count);
}

std::string counted(int64_t count, const char* one, const char* several) {
  return fmt::format("{} {}", count, count == 1 ? one : several);
}

std::string human_seconds(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s % 3600 / 60);
}

Progress::Progress(const Settings& settings, bool bytes, double gemm_rate)
    : steps_(settings.train.steps),
      every_(settings.run.log_every),
      packed_(settings.train.tokens_per_device > 0),
      bytes_(bytes),
      ranks_(settings.parallel.ranks()),
      gemm_rate_(gemm_rate),
      start_(std::chrono::steady_clock::now()) {}

std::string Progress::bits(const char* before, double loss) const {
  return bytes_ ? fmt::format("{}{:.2f} bits a byte", before, loss / std::numbers::ln2) : "";
}

std::string Progress::line(const StepTaken& done, const RunRecord& record) const {
  const StepReport& r = done.report;
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const double left = static_cast<double>(steps_ - done.step) * record.median_step_ms() / 1000;
  return fmt::format(
      "[Step {:>{}}/{}] {:>3}%  loss {:.3f}{}  lr {:.2e}  norm {:.2f}  load {:.2f}  dropped {:.1f}%{}  "
      "{:.0f} tokens/s{}{}  {} tokens  peak {}  {} elapsed, {} left",
      done.step, std::to_string(steps_).size(), steps_, 100 * done.step / steps_, r.loss, bits(", ", r.loss),
      r.lr, r.gradient_norm, r.load_max_over_mean, 100 * r.dropped_fraction,
      packed_ ? fmt::format("  fill {:.1f}%", 100 * r.fill()) : "", record.median_tokens_per_second(),
      ranks_ > 1 ? fmt::format(" on {} ranks", ranks_) : "", share_of_gemm(", ", record, gemm_rate_),
      human_count(done.tokens), human_bytes(done.memory.peak), human_seconds(elapsed.count()),
      human_seconds(left));
}

void Progress::step(const StepTaken& done, const RunRecord& record) const {
  const StepReport& r = done.report;
  if (r.skipped)
    print_line(fmt::format("[Step {}] loss {} or gradient norm {} is not finite; step skipped", done.step,
                           r.loss, r.gradient_norm));
  if (every_ == 0 || (done.step % every_ != 0 && done.step != steps_ && done.step != 1)) return;
  print_line(line(done, record));
}

void Progress::held_out(int64_t step, double loss, int64_t batches) const {
  print_line(fmt::format("[Step {}] held-out loss {:.4f} nats a token{} ({})", step, loss, bits(", ", loss),
                         counted(batches, "batch", "batches")));
}

void print_start(const Settings& settings, c10::Device device, const DryRun& predicted) {
  const ModelSettings& m = settings.model;
  const std::string experts =
      m.dense() ? "dense" : fmt::format("{} experts, top-{}", m.experts, m.experts_per_token);
  const int64_t limit = settings.memory.limit.count, sharing = settings.parallel.expert;
  const std::string shared_experts =
      sharing > 1 ? fmt::format(", with {} experts each", m.experts / sharing) : "";
  std::cout << fmt::format("{}: {} parameters, {} active a token; {} of width {}, {}\n", m.preset,
                           human_count(parameter_count(m)), human_count(active_parameter_count(m)),
                           counted(m.layers, "layer", "layers"), m.d_model, experts)
            << fmt::format("device {}, {}; compute {}, attention {}, dispatch {}, checkpoint {}\n",
                           device.str(), counted(at::get_num_threads(), "thread", "threads"),
                           value_text(settings.precision.compute), value_text(settings.attention.kernel),
                           value_text(m.dispatch), value_text(settings.activations.checkpoint))
            << (settings.parallel.tensor > 1
                    ? fmt::format("{} tensor-parallel ranks have a slice of each matrix\n",
                                  settings.parallel.tensor)
                    : "")
            << (settings.parallel.data > 1
                    ? fmt::format("{} data-parallel ranks{}; a step has {} micro-batches of {} rows\n",
                                  settings.parallel.data, shared_experts,
                                  settings.parallel.data * settings.train.accumulation,
                                  settings.train.micro_batch)
                    : "")
            << (settings.parallel.pipeline > 1
                    ? fmt::format("{} stages of a pipeline, {}, {} each\n", settings.parallel.pipeline,
                                  value_text(settings.parallel.schedule),
                                  counted(settings.parallel.chunks, "chunk", "chunks"))
                    : "")
            << fmt::format("memory: weights {}, gradients {}, optimizer {}; predicted peak {}{}\n",
                           human_bytes(predicted.state.parameters), human_bytes(predicted.state.gradients),
                           human_bytes(predicted.state.optimizer), human_bytes(predicted.held()),
                           limit > 0 ? " of " + human_bytes(limit) : "")
            << std::flush;
  const std::string_view slow = compute_facts(settings.precision.compute).slow_on_gpu;
  if (device.is_cuda() && !slow.empty())
    print_line(fmt::format("warning: precision.compute={} on a GPU: {}",
                           value_text(settings.precision.compute), slow));
}

void print_end(const Settings& settings, int64_t steps, const RunRecord::Ending& ending,
               const RunRecord& record) {
  if (const SaveCosts& saves = ending.saves; saves.count > 0) {
    print_line(fmt::format(
        "{} of {} saved; training waited {:.2f} s for that, writing in the background took {:.2f} s",
        counted(saves.count, "checkpoint", "checkpoints"), human_bytes(saves.last.bytes),
        saves.blocked_seconds, saves.write_seconds));
  }
  print_waits(record);
  const double rate = record.median_tokens_per_second();
  const std::string speed = std::isfinite(rate) ? fmt::format("; {:.0f} tokens/s{}", rate,
                                                              share_of_gemm(", ", record, ending.gemm_rate))
                                                : "";
  const RunRecord::Totals totals = record.totals();
  print_line(
      fmt::format("{}, {} tokens in {}{}; peak {} (predicted {}){}; files in {}",
                  counted(steps, "step", "steps"), human_count(totals.tokens), human_seconds(totals.seconds),
                  speed, human_bytes(ending.peaks.allocated), human_bytes(ending.predicted.held()),
                  settings.memory.limit.count > 0 ? " of " + human_bytes(settings.memory.limit.count) : "",
                  settings.run.dir));
}

}  // namespace moelab
