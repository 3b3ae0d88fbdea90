#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <list>
#include <utility>

#include "tests/emulator/fibers.h"
#include "tests/emulator/ptx.h"
#include "tests/emulator/races.h"

// wgmma: products of a warpgroup, whose factors lie in shared memory as their descriptors say.
namespace moelab::emulator::ptx {
namespace {

constexpr unsigned kRows = 64, kTerms = 16, kChunk = 8;  // kChunk: elements of 16 bytes
constexpr uint32_t kLine = 128;                          // bytes of a swizzled line
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// 16 bytes of a factor: a line's, from this element on.
struct Chunk {
  uint32_t offset;  // in shared memory
  unsigned row, term;
  std::array<uint16_t, kChunk> held;  // when the product began

  bool is_still_held() const { return std::memcmp(shared_at(offset, 16), held.data(), 16) == 0; }
};

// A descriptor's fields, in the ISA's words: matrix start address, leading and stride dimension byte offset.
struct Factor {
  uint32_t start, leading, stride;
  bool transposed;
  unsigned rows;

  Factor(uint64_t bits, bool is_transposed, unsigned number_of_rows)
      : start(field(bits, 0)),
        leading(field(bits, 16)),
        stride(field(bits, 32)),
        transposed(is_transposed),
        rows(number_of_rows) {
    const bool swizzles_128 = bits >> 62 == 1, has_base_offset = (bits >> 49 & 7) != 0;
    if (!swizzles_128 || has_base_offset || start / kLine % 8 != 0) trap();
  }
  // Each chunk with what it holds, and NaN where it holds nothing that wgmma would see.
  void add_to(std::vector<Chunk>& chunks) const {
    const unsigned a_line = transposed ? rows / kChunk : kTerms / kChunk;
    for (unsigned i = 0; i < rows * kTerms / kChunk; ++i) {
      const unsigned line = i / a_line, first = i % a_line * kChunk;
      Chunk chunk{transposed ? of_terms(line, first) : of_rows(line, first),
                  transposed ? first : line,
                  transposed ? line : first,
                  {}};
      std::memcpy(chunk.held.data(), shared_at(chunk.offset, 16), 16);
      if (is_hidden(chunk.offset)) chunk.held.fill(0xFFFF);
      chunks.push_back(chunk);
    }
  }

 private:
  static uint32_t field(uint64_t bits, unsigned first) {
    return static_cast<uint32_t>(bits >> first & 0x3FFF) * 16;
  }
  // Bits 4 to 6 of an address are crossed with bits 7 to 9.
  static uint32_t swizzled(uint32_t offset) { return offset ^ (offset / kLine % 8) * 16; }

  // K-major: eight rows are a block.
  uint32_t of_rows(unsigned row, unsigned term) const {
    return swizzled(start + row / 8 * stride + row % 8 * kLine + term * 2);
  }
  // MN-major: eight terms of 64 rows are a block.
  uint32_t of_terms(unsigned term, unsigned row) const {
    return swizzled(start + row / 64 * leading + term / 8 * stride + term % 8 * kLine + row % 64 * 2);
  }
};

// What a warpgroup multiplies now. A thread has taken its part before the next product begins, in which all
// meet.
struct Group {
  std::array<const Product*, kWarpgroup> asked{};
  std::vector<Chunk> chunks;  // a's, then b's
  std::vector<double> sums;   // a b, (kRows, columns)
};
std::array<Group, kMostThreads / kWarpgroup> groups;

// The factor's elements by term, then row.
std::vector<double> values(const std::vector<Chunk>& chunks, const Product& product, bool of_b) {
  const unsigned rows = of_b ? product.columns : kRows, before = of_b ? kRows * kTerms / kChunk : 0;
  const bool transposed = of_b ? product.transposed_b : product.transposed_a;
  std::vector<double> all(rows * kTerms);
  for (unsigned i = before; i < before + rows * kTerms / kChunk; ++i) {
    for (unsigned k = 0; k < kChunk; ++k) {
      const unsigned row = chunks[i].row + (transposed ? k : 0), term = chunks[i].term + (transposed ? 0 : k);
      all[term * rows + row] = product.to_float(chunks[i].held[k]);
    }
  }
  return all;
}

// Done by the last of the group's threads.
void multiply(Group& group) {
  const Product& product = *group.asked[0];
  if (!std::all_of(group.asked.begin(), group.asked.end(), [&](const Product* p) { return *p == product; }))
    trap();
  const unsigned columns = product.columns;
  group.chunks.clear();
  Factor(product.a, product.transposed_a, kRows).add_to(group.chunks);
  Factor(product.b, product.transposed_b, columns).add_to(group.chunks);
  const std::vector<double> a = values(group.chunks, product, false), b = values(group.chunks, product, true);
  group.sums.assign(size_t{kRows} * columns, 0);
  for (unsigned t = 0; t < kTerms; ++t) {
    for (unsigned row = 0; row < kRows; ++row) {
      for (unsigned j = 0; j < columns; ++j)
        group.sums[row * columns + j] += a[t * kRows + row] * b[t * columns + j];
    }
  }
}

// A thread's sums from the first product to the wait for the last. Until then its registers are NaN.
struct HeldSums {
  std::vector<float*> registers;
  std::vector<float> values;
  unsigned products = 0;  // under way
};
struct Started {
  HeldSums* sums;
  std::vector<Chunk> chunks;  // this thread's share of the factors
};
struct Thread {
  bool gave_sums = false;
  std::list<HeldSums> held;
  std::vector<Started> open;
  std::list<std::vector<Started>> groups;  // the oldest first
};
std::array<Thread, kMostThreads> threads;
bool block_multiplies = false;

HeldSums& sums_in(Thread& thread, const std::vector<float*>& registers, bool adds) {
  for (HeldSums& sums : thread.held) {
    if (sums.registers[0] == registers[0]) return sums;
  }
  HeldSums& sums = thread.held.emplace_back(HeldSums{registers, {}});
  for (const float* const one : registers) sums.values.push_back(thread.gave_sums ? adds ? *one : 0 : kNaN);
  return sums;
}

// Register i of this thread: of each eight columns it has two, in rows q and q + 8 of its warp's 16.
size_t place_of(unsigned i, unsigned columns) {
  const unsigned thread = current_thread() % kWarpgroup, lane = thread % kWarp;
  const unsigned row = thread / kWarp * 16 + lane / 4 + i / 2 % 2 * 8;
  return size_t{row} * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}

void note_reads(const std::vector<Chunk>& chunks, const void* where) {
  for (const Chunk& chunk : chunks) races::access(shared_at(chunk.offset, 16), 16, false, false, where);
}

// The product has ended.
void end(const Started& started, const void* where) {
  note_reads(started.chunks, where);
  const auto holds = [](const Chunk& chunk) { return chunk.is_still_held(); };
  if (!std::all_of(started.chunks.begin(), started.chunks.end(), holds))
    std::fill(started.sums->values.begin(), started.sums->values.end(), kNaN);
  --started.sums->products;
}

void give_back(const HeldSums& sums) {
  for (size_t i = 0; i < sums.values.size(); ++i) *sums.registers[i] = sums.values[i];
}

}  // namespace

void begin_block_of_products() {
  if (!std::exchange(block_multiplies, false)) return;
  for (Thread& thread : threads) thread = {};
}

void start(const Product& product, std::vector<float*> registers) {
  const void* const where = __builtin_return_address(0);
  block_multiplies = true;
  Group& group = groups[current_thread() / kWarpgroup];
  const unsigned number = current_thread() % kWarpgroup;
  group.asked[number] = &product;
  sync_warpgroup([&] { multiply(group); });
  Thread& thread = threads[current_thread()];
  HeldSums& sums = sums_in(thread, registers, product.adds);
  ++sums.products;
  for (unsigned i = 0; i < registers.size(); ++i) {
    const double before = product.adds || sums.products == 1 ? sums.values[i] : 0;
    sums.values[i] = static_cast<float>(before + group.sums[place_of(i, product.columns)]);
    *registers[i] = kNaN;
  }
  Started started{&sums, {}};
  for (size_t i = number; i < group.chunks.size(); i += kWarpgroup) started.chunks.push_back(group.chunks[i]);
  note_reads(started.chunks, where);
  thread.open.push_back(std::move(started));
}

void wgmma_fence_sync_aligned() {
  block_multiplies = true;
  threads[current_thread()].gave_sums = true;
}

void wgmma_commit_group_sync_aligned() {
  Thread& thread = threads[current_thread()];
  thread.groups.push_back(std::exchange(thread.open, {}));
}

void wgmma_wait_group_sync_aligned(unsigned left) {
  const void* const where = __builtin_return_address(0);
  Thread& thread = threads[current_thread()];
  for (; thread.groups.size() > left; thread.groups.pop_front()) {
    for (const Started& started : thread.groups.front()) end(started, where);
  }
  thread.held.remove_if([&](const HeldSums& sums) {
    if (sums.products > 0) return false;
    give_back(sums);
    thread.gave_sums = false;
    return true;
  });
}

}  // namespace moelab::emulator::ptx
