#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/tradeoff/provenance.h"

namespace moelab::tradeoff {

// Runs a moelab command that prints a JSON object of schema 1. Returns that object with its provenance in
// front: schema, command, commit, machine. Nothing if a stop signal came first. `scratch`: a file for the
// command's output; a file beside it takes its errors. Needs HeldSignals. Throws UserError with the last of
// them when it fails.
std::optional<Json> ask(const std::vector<std::string>& command, const Provenance& from,
                        const std::filesystem::path& scratch);

// Replaces the file as a whole or, on failure, leaves the old one alone and throws IoError.
void write_json(const std::filesystem::path& path, const Json& json);

// From the output of `moelab techniques --pairs --json`: at most `count` pairs with the smallest predicted
// peaks, smallest first. Pairs of several ranks are left out. Each pair is the names of its two techniques.
std::vector<std::vector<std::string>> largest_savings(const Json& predictions, int64_t count);

}  // namespace moelab::tradeoff
