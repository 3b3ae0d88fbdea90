#include "train/checkpoint/checkpoint_tensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <utility>

namespace moelab {
namespace {

int64_t elements_of(const std::vector<int64_t>& shape, const std::string& where) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
      throw UserError(where + ": damaged: a tensor of an impossible shape");
  }
  return elements;
}

// "'a', 'b', 'c' and 7 more"
std::string first_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i)
    text += (i ? ", " : "") + in_quotes(names[i]);
  return names.size() <= 3 ? text : text + " and " + std::to_string(names.size() - 3) + " more";
}

// A verb, the number of names, and the first names.
std::string listed(const std::string& verb, const std::vector<std::string>& names) {
  return names.empty() ? ""
                       : " " + verb + " " + std::to_string(names.size()) + " (" + first_names(names) + ")";
}

void check_names(const CheckpointTensors& saved, const std::vector<TensorEntry>& into,
                 const std::function<bool(const std::string&)>& elsewhere) {
  std::unordered_set<std::string> wanted;
  std::vector<std::string> missing, unexpected;
  for (const TensorEntry& entry : into) {
    TORCH_CHECK(wanted.insert(entry.name).second, "two tensors are to be restored as ", entry.name);
    if (!saved.tensors().contains(entry.name)) missing.push_back(entry.name);
  }
  for (const auto& [name, tensor] : saved.tensors()) {
    if (!wanted.contains(name) && !(elsewhere && elsewhere(name))) unexpected.push_back(name);
  }
  if (missing.empty() && unexpected.empty()) return;
  throw UserError(saved.where() + ": holds another model: of the " + std::to_string(into.size()) +
                  " tensors needed it" + listed("lacks", missing) +
                  (missing.empty() || unexpected.empty() ? "" : " and") + listed("has besides", unexpected));
}

void check_shapes(const CheckpointTensors& saved, const std::vector<TensorEntry>& into) {
  for (const TensorEntry& entry : into) {
    const CheckpointTensors::Saved& have = saved.tensors().at(entry.name);
    SafetensorsInfo want = describe_tensor(entry);
    if (entry.part) want.shape = entry.part->shape;
    if (have.type == want.type && have.shape == want.shape) continue;
    throw UserError(saved.where() + ": tensor " + in_quotes(entry.name) + " is " +
                    describe(have.type, have.shape) + " there, but " + describe(want.type, want.shape) +
                    " is needed: the settings differ from those of the run that wrote it");
  }
}

// A slice must lie in its tensor, and hold the part.
void check_slice(const TensorPart& part, int64_t elements, const std::string& name,
                 const std::string& where) {
  if (part.slice.whole()) return;
  elements_of(part.shape, where);
  const int64_t dims = static_cast<int64_t>(part.shape.size()), dim = part.slice.dim;
  bool fits = dim >= 0 && dim < dims && part.first >= 0;
  int64_t left = fits ? part.shape[dim] : 0;  // of the dimension
  for (const Range& range : part.slice.ranges) {
    fits = fits && range.first >= 0 && range.count > 0 && range.first <= part.shape[dim] - range.count &&
           range.count <= left;
    left -= fits ? range.count : 0;
  }
  if (fits) {
    std::vector<int64_t> sliced = part.shape;
    sliced[dim] = part.slice.count();
    fits = part.first <= elements_of(sliced, where) - elements;
  }
  if (!fits) throw UserError(where + ": damaged: a slice of tensor " + in_quotes(name) + " is none of it");
}

}  // namespace

CheckpointTensors::CheckpointTensors(SafetensorsFile file) : where_(file.path().string()) {
  for (const SafetensorsInfo& info : file.header().tensors)
    tensors_[info.name] = {info.type, info.shape, {{0, 0, elements_of(info.shape, where_)}}};
  files_.push_back(std::move(file));
}

CheckpointTensors::CheckpointTensors(std::vector<SafetensorsFile> files,
                                     const std::vector<std::map<std::string, ManifestTensor>>& tensors,
                                     std::string where)
    : files_(std::move(files)), where_(std::move(where)) {
  for (size_t f = 0; f < files_.size(); ++f) {
    for (const auto& [name, entry] : tensors.at(f)) {
      const TensorPart part = entry.part.value_or(TensorPart{entry.shape, 0});
      const auto [at, is_new] = tensors_.try_emplace(name, Saved{entry.type, part.shape, {}});
      Saved& saved = at->second;
      if (saved.type != entry.type || saved.shape != part.shape)
        throw UserError(where_ + ": damaged: the parts of tensor " + in_quotes(name) +
                        " are of two shapes or types");
      const int64_t count = elements_of(entry.shape, where_);
      if (count == 0) continue;
      check_slice(part, count, name, where_);
      int64_t place = 0;  // in the file's tensor
      for_each_run(part, count, [&](int64_t first, int64_t run) {
        saved.pieces.push_back({f, first, run, place});
        place += run;
      });
    }
  }
  for (auto& [name, saved] : tensors_) {
    std::sort(saved.pieces.begin(), saved.pieces.end(),
              [](const Piece& a, const Piece& b) { return a.first < b.first; });
    int64_t covered = 0;
    for (const Piece& piece : saved.pieces) {
      if (piece.first != covered) break;
      covered += piece.count;
    }
    const auto count = [](int64_t sum, const Piece& piece) { return sum + piece.count; };
    const int64_t held = std::accumulate(saved.pieces.begin(), saved.pieces.end(), int64_t{0}, count);
    if (covered != elements_of(saved.shape, where_) || held != covered)
      throw UserError(where_ + ": damaged: the parts of tensor " + in_quotes(name) + " do not make it whole");
  }
}

const SafetensorsInfo& CheckpointTensors::info(const std::string& name, const Piece& piece) const {
  return *files_[piece.file].header().find(name);
}

at::Tensor CheckpointTensors::tensor(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw UserError(where_ + ": has no tensor " + in_quotes(name));
  const Saved& saved = found->second;
  const at::TensorOptions options(to_scalar_type(saved.type));
  if (saved.pieces.size() == 1) {
    // from_blob wants a mutable pointer; nothing writes through it.
    const Piece& piece = saved.pieces.front();
    auto* data = const_cast<std::byte*>(files_[piece.file].bytes(info(name, piece)).data());
    return at::from_blob(data, saved.shape, options);
  }
  const at::Tensor whole = at::empty(saved.shape, options);
  copy_to(name, {.shape = saved.shape}, whole);
  return whole;
}

// Many small pieces go to another device together.
void CheckpointTensors::copy_to(const std::string& name, const TensorPart& part,
                                const at::Tensor& into) const {
  const bool at_once = into.is_cpu() || tensors_.at(name).pieces.size() == 1;
  const at::Tensor there = at_once ? into : at::empty(into.sizes(), at::TensorOptions(into.scalar_type()));
  int64_t done = 0;
  for_each_run(part, into.numel(), [&](int64_t first, int64_t count) {
    copy_run(name, first, count == into.numel() ? there : there.view(-1).narrow(0, done, count));
    done += count;
  });
  if (!at_once) into.copy_(there);
}

// Copies elements from `first` on, as many as `into` has.
void CheckpointTensors::copy_run(const std::string& name, int64_t first, const at::Tensor& into) const {
  const std::vector<Piece>& pieces = tensors_.at(name).pieces;
  const int64_t end = first + into.numel();
  const auto ends_before = [](const Piece& piece, int64_t element) {
    return piece.first + piece.count <= element;
  };
  auto piece = std::lower_bound(pieces.begin(), pieces.end(), first, ends_before);
  for (; piece != pieces.end() && piece->first < end; ++piece) {
    const int64_t from = std::max(first, piece->first), to = std::min(end, piece->first + piece->count);
    const bool all = from == first && to == end;
    files_[piece->file].copy_elements(info(name, *piece), piece->at + from - piece->first,
                                      all ? into : into.view(-1).narrow(0, from - first, to - from));
  }
}

void restore(const CheckpointTensors& saved, const std::vector<TensorEntry>& into,
             const std::function<bool(const std::string& name)>& elsewhere) {
  check_names(saved, into, elsewhere);
  check_shapes(saved, into);
  for (const TensorEntry& entry : into)
    saved.copy_to(entry.name, entry.part.value_or(TensorPart{.shape = entry.tensor.sizes().vec()}),
                  entry.tensor);
}

}  // namespace moelab
