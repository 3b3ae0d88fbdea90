#include "train/loop/run_failure.h"

#include <c10/util/Exception.h>

#include <new>

namespace moelab {
namespace {

template <class Error>
const Error* as(const std::exception& error) {
  return dynamic_cast<const Error*>(&error);
}

}  // namespace

std::string RunFailure::text_of(const std::exception& error) {
  if (as<std::bad_alloc>(error) != nullptr) return "out of memory: the system has no more";
  const auto* libtorch = as<c10::Error>(error);
  const std::string text = libtorch != nullptr ? libtorch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

void RunFailure::note(const std::exception& error) {
  if (error_) return;
  error_ = std::current_exception();
  reason_ = text_of(error);
  out_of_memory_ = as<c10::OutOfMemoryError>(error) != nullptr || as<std::bad_alloc>(error) != nullptr;
}

}  // namespace moelab
