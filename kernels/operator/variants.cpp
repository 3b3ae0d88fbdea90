#include "kernels/operator/variants.h"

#include <algorithm>

namespace moelab {
namespace {

std::vector<VariedOperator*>& all() {
  static std::vector<VariedOperator*> operators;
  return operators;
}

}  // namespace

VariedOperator::VariedOperator(const char* name) : name_(name) { all().push_back(this); }

VariedOperator::~VariedOperator() { std::erase(all(), this); }

size_t VariedOperator::index_of(const std::string& variant) const {
  const auto found = std::find(variants_.begin(), variants_.end(), variant);
  return found == variants_.end() ? 0 : static_cast<size_t>(found - variants_.begin());
}

void VariedOperator::add_name(const std::string& variant) {
  variants_.push_back(variant);
  chosen_ = variants_.size() - 1;
}

std::vector<VariedOperator*> varied_operators() {
  std::vector<VariedOperator*> operators = all();
  std::sort(operators.begin(), operators.end(), [](const VariedOperator* one, const VariedOperator* other) {
    return one->name() < other->name();
  });
  return operators;
}

KernelChoice kernels_in_use() {
  KernelChoice choice;
  for (const VariedOperator* op : varied_operators()) choice[op->name()] = op->variants()[op->chosen()];
  return choice;
}

void use_kernels(const KernelChoice& choice) {
  for (VariedOperator* op : varied_operators()) {
    const auto named = choice.find(op->name());
    op->choose(named == choice.end() ? 0 : op->index_of(named->second));
  }
}

}  // namespace moelab
