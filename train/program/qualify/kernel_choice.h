#pragma once
#include <c10/core/Device.h>

#include <optional>
#include <string>

#include "train/program/qualify/kernel_record.h"
#include "train/settings/settings.h"

// Which variants of the kernels a run uses on a GPU. On the CPU there is nothing to choose.
namespace moelab {

// The program that qualifies, `PROGRAM qualify`: this one. Without it nothing is qualified: a test that calls
// a command would start itself.
void set_qualifying_program(const std::string& path);

// The layer that a rank of such a run computes.
ExpertSizes expert_sizes(const Settings& settings);
// What a qualification for this run on the GPU holds for.
KernelKey kernel_key(const Settings& settings, c10::Device gpu);

// The latest day on which the kernels passed a qualification on this GPU, by the user's cache; empty: none.
std::string qualification_date(c10::Device gpu);

// The record of the user's cache for this run; if there is none, or `anew`, tries all variants and writes it.
// Throws UserError when nothing could be tried.
KernelRecord qualify(const Settings& settings, c10::Device gpu, bool anew, double patience);

// Uses the kernels that the environment, the checkpoint that a run resumes from, or else a qualification
// says, and returns what to say of that, one line. On the CPU, and if nothing qualifies, uses what was used
// before: empty. `of_checkpoint`: the text of kernels.json, if there is one. Throws UserError for another
// MOELAB_KERNELS than "plain".
std::string take_kernels(const Settings& settings, c10::Device device,
                         const std::string* of_checkpoint = nullptr);

// The kernels in use as JSON, {"operator": "variant"}: kernels.json of a checkpoint, and of a run's summary.
nlohmann::json kernels_json();
void use_kernels_of(const std::string& json);

// "swiglu packed, …"
std::string kernels_text(const KernelChoice& choice);

}  // namespace moelab
