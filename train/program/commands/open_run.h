#pragma once
#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <string>

#include "train/data/dataset.h"
#include "train/data/rows.h"
#include "train/parallel/world.h"
#include "train/settings/settings.h"

namespace moelab {

// Applies run.threads. The operators' scratch depends on the number of threads, so a dry run calls this too.
void use_threads(const Settings& settings);

// The device of run.device (see choose_device), which the calling thread then uses, with run.threads and
// run.deterministic applied.
c10::Device open_device(const Settings& settings, const World& world = {});

// As open_device(), and applies memory.limit to the device.
c10::Device limited_device(const Settings& settings);

// The data of data.path. If the shards have no tokenizer, it takes that of train.init. Throws UserError when
// data.path is not set, or when the shards and train.init have different tokenizers.
Dataset open_data(const Settings& settings);

// Whether a token of the data is known to be a byte.
bool tokens_are_bytes(const Dataset& data);

// The training rows: windows of train.sequence tokens, or documents packed to train.tokens_per_device. Throws
// UserError when packing and no token is known to end a document.
std::unique_ptr<const RowSource> open_rows(const Settings& settings, const Dataset& data, c10::Device device);

// Reads a small text file. Throws UserError.
std::string read_text(const std::filesystem::path& path);

}  // namespace moelab
