#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "bench/tradeoff/provenance.h"

namespace moelab::tradeoff {

// What a call of moelab prints, a JSON object of schema 1, with where it is from: schema, command, commit,
// machine, then the call's own. Nothing when a signal came first. `scratch`: a file for its output. Needs
// HeldSignals. Throws UserError with the call's last line when it fails.
std::optional<Json> ask(const std::vector<std::string>& command, const Provenance& from,
                        const std::filesystem::path& scratch);

// Writes the file whole, in place of one that is there, or leaves that alone and throws IoError.
void write_json(const std::filesystem::path& path, const Json& json);

// Of `moelab techniques --pairs --json`: the pairs that leave the smallest peaks, as the names of their two
// techniques, at most `count`, the largest saving first.
std::vector<std::vector<std::string>> largest_savings(const Json& predictions, int64_t count);

}  // namespace moelab::tradeoff
