#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "moe/settings/error.h"

namespace moelab {

// The message of the UserError that `action` throws; a test failure when it throws none.
inline std::string user_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

}  // namespace moelab
