#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>

#include "train/config/settings.h"
#include "train/data/dataset.h"
#include "train/data/rows.h"

namespace moelab {

// Applies run.threads. What the operators' scratch takes depends on it, so a dry run wants it as well.
void use_threads(const Settings& settings);

// The device of run.device, with run.threads and run.deterministic applied. Throws UserError for cuda where
// it cannot be used.
c10::Device open_device(const Settings& settings);

// The same, under memory.limit from now on.
c10::Device limited_device(const Settings& settings);

// The data of data.path, and as its tokenizer that of train.init's folder where the shards have none. Throws
// UserError when no data is given, and for shards whose ids are another tokenizer's than train.init's.
Dataset open_data(const Settings& settings);

// The rows that training reads: windows of train.sequence tokens, or documents packed to
// train.tokens_per_device. Throws UserError when nothing says what ends a document.
std::unique_ptr<const RowSource> open_rows(const Settings& settings, const Dataset& data, c10::Device device);

// A small file's text. Throws UserError.
std::string read_text(const std::filesystem::path& path);

}  // namespace moelab
