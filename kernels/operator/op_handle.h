#pragma once
#include <ATen/core/dispatch/Dispatcher.h>

namespace moelab {

// The typed handle of one of our torch operators ("moelab::name"), looked up once a call site.
template <class Signature>
auto operator_handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace moelab
