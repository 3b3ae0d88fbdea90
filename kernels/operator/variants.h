#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

// Operators that have more than one implementation, a variant each. Which of them are right and which is
// fastest depends on the GPU, so it is found out there (train/program/qualify).
namespace moelab {

// An operator's name, the names of its variants, and which of them is used. The first variant is called
// "plain". It is the simplest, and the others are compared with it.
class VariedOperator {
 public:
  explicit VariedOperator(const char* name);
  VariedOperator(const VariedOperator&) = delete;
  VariedOperator& operator=(const VariedOperator&) = delete;
  ~VariedOperator();

  const std::string& name() const { return name_; }
  const std::vector<std::string>& variants() const { return variants_; }
  // The index of the variant with this name. An unknown name gives the index of "plain".
  size_t index_of(const std::string& variant) const;

  // An index. The last variant, until another is chosen.
  size_t chosen() const { return chosen_; }
  // For all threads; none of them computes meanwhile.
  void choose(size_t variant) { chosen_ = variant; }

 protected:
  void add_name(const std::string& variant);

 private:
  std::string name_;
  std::vector<std::string> variants_;
  size_t chosen_ = 0;
};

// All of this program, by name.
std::vector<VariedOperator*> varied_operators();

// The variants in use, and their use from now on. An operator that `choice` does not name, and a variant that
// this program does not have, are taken as "plain".
using KernelChoice = std::map<std::string, std::string>;  // operator -> variant
KernelChoice kernels_in_use();
void use_kernels(const KernelChoice& choice);

// A varied operator that can be called like a function: the call runs the chosen variant. All variants have
// the same parameters and result.
template <class Function>
class Variants;

template <class Result, class... Arguments>
class Variants<Result(Arguments...)> : public VariedOperator {
 public:
  using Function = Result(Arguments...);

  Variants(const char* name, const std::vector<std::pair<std::string, Function*>>& variants)
      : VariedOperator(name) {
    for (const auto& [variant, function] : variants) add(variant, function);
  }
  void add(const std::string& variant, Function* function) {
    functions_.push_back(function);
    add_name(variant);
  }

  Result operator()(Arguments... arguments) const { return functions_[chosen()](arguments...); }

 private:
  std::vector<Function*> functions_;
};

}  // namespace moelab
