#include "train/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "tests/user_error.h"

namespace moelab {
namespace {

// A file with this header and `data_bytes` bytes of data.
std::string file_of(const std::string& json, size_t data_bytes) {
  const uint64_t length = json.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + json + std::string(data_bytes, 'x');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "file");
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}";
}

TEST(Safetensors, ReadsWhatTheFormatDescribes) {
  const std::string json = "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "I8", "[3]", "[8,11]") +
                           "," + entry("a", "F32", "[2,1]", "[0,8]") + "," +
                           entry("none", "BF16", "[0,7]", "[11,11]") + "," +
                           entry("scalar", "U8", "[]", "[11,12]") + "}  ";
  const SafetensorsHeader header = parse(file_of(json, 12));
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
  EXPECT_EQ(header.find("a")->shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(header.find("none")->bytes(), 0u);
  EXPECT_EQ(header.find("scalar")->begin, 11u);
  EXPECT_EQ(header.find("scalar")->shape.size(), 0u);
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.data_offset, 8 + json.size());
}

struct Attack {
  std::string name;
  std::string file;
  std::string message;  // must be part of the refusal
};

std::string with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + rest;
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{" + entry("a", dtype, shape, offsets) + "}";
}

// Inputs like published attacks on safetensors and JSON readers, plus one violation of each guarantee of the
// header.
std::vector<Attack> attacks() {
  const std::string good = entry("a", "F32", "[1]", "[0,4]");
  const std::string deep(100'000, '[');
  std::string many_axes;
  for (int i = 0; i < 64; ++i) many_axes += ",1";
  return {
      {"empty", "", "shorter than 8"},
      {"seven_bytes", "1234567", "shorter than 8"},
      {"length_only", with_length(2, ""), "longer than the file"},
      {"length_beyond_file", with_length(100, "{}"), "longer than the file"},
      {"length_over_cap", with_length(100'000'001, "{}"), "100000000"},
      {"length_all_ones", with_length(~uint64_t{0}, "{}"), "100000000"},
      {"length_wraps_with_8", with_length(~uint64_t{0} - 7, "{}"), "100000000"},
      {"length_zero", with_length(0, "{}"), "begin with '{'"},
      {"space_before_brace", file_of(" {}", 0), "begin with '{'"},
      {"byte_order_mark", file_of("\xEF\xBB\xBF{}", 0), "begin with '{'"},
      {"a_list", file_of("[]", 0), "begin with '{'"},
      {"zero_byte_hides_rest", file_of(std::string("{}\0{\"x\":1}", 10), 0), "zero byte"},
      {"second_value", file_of("{}{}", 0), "no JSON"},
      {"unfinished", file_of("{\"a\":", 0), "no JSON"},
      {"no_utf8", file_of("{\"\xff\":1}", 0), "no JSON"},
      {"overlong_utf8", file_of("{\"\xc0\x80\":1}", 0), "no JSON"},
      {"lone_surrogate", file_of("{\"\\ud800\":1}", 0), "no JSON"},
      {"nested_deeply", file_of("{\"a\":" + deep, 0), "a list"},
      {"nested_objects", file_of("{\"a\":{\"b\":{\"c\":{}}}}", 0), "unknown key"},
      {"nested_in_shape", file_of(one("F32", "[[1]]", "[0,4]"), 4), "a list"},
      {"object_in_dtype", file_of("{\"a\":{\"dtype\":{}}}", 0), "an object"},
      {"tensor_is_a_list", file_of("{\"a\":[]}", 0), "a list"},
      {"tensor_is_a_number", file_of("{\"a\":1}", 0), "a number"},
      {"tensor_is_null", file_of("{\"a\":null}", 0), "null"},
      {"name_twice", file_of("{" + good + "," + good + "}", 4), "appears twice"},
      {"metadata_twice", file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "appears twice"},
      {"metadata_key_twice", file_of("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), "twice"},
      {"metadata_number", file_of("{\"__metadata__\":{\"a\":1}}", 0), "a number"},
      {"metadata_nested", file_of("{\"__metadata__\":{\"a\":{}}}", 0), "an object"},
      {"metadata_null", file_of("{\"__metadata__\":null}", 0), "null"},
      {"metadata_string", file_of("{\"__metadata__\":\"x\"}", 0), "a string"},
      {"dtype_twice", file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F64\"}}", 0), "twice"},
      {"shape_twice", file_of("{\"a\":{\"shape\":[1],\"shape\":[2]}}", 0), "twice"},
      {"offsets_missing", file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4), "lacks"},
      {"no_fields", file_of("{\"a\":{}}", 0), "lacks"},
      {"unknown_field", file_of("{\"a\":{\"x\":1}}", 0), "unknown key"},
      {"unknown_dtype", file_of(one("F7", "[1]", "[0,4]"), 4), "dtype 'F7'"},
      {"dtype_is_number", file_of("{\"a\":{\"dtype\":7}}", 0), "a number"},
      {"offset_negative", file_of(one("F32", "[1]", "[-4,0]"), 4), "negative"},
      {"offset_fraction", file_of(one("F32", "[1]", "[0.0,4]"), 4), "no integer"},
      {"offset_exponent", file_of(one("F32", "[1]", "[0,4e0]"), 4), "no integer"},
      {"offset_string", file_of(one("F32", "[1]", "[\"0\",4]"), 4), "a string"},
      {"offset_over_64_bits", file_of(one("F32", "[1]", "[0,18446744073709551620]"), 4), "no integer"},
      {"one_offset", file_of(one("F32", "[1]", "[4]"), 4), "fewer than two"},
      {"three_offsets", file_of(one("F32", "[1]", "[0,4,4]"), 4), "third"},
      {"end_before_begin", file_of(one("F32", "[1]", "[4,0]"), 4), "outside"},
      {"end_beyond_data", file_of(one("F32", "[2]", "[0,8]"), 4), "outside"},
      {"end_is_max", file_of(one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), 4), "2^63"},
      {"offsets_wrap", file_of(one("F32", "[1]", "[18446744073709551612,0]"), 4), "outside"},
      {"hole_at_start", file_of(one("F32", "[1]", "[4,8]"), 8), "hole"},
      {"hole_between", file_of("{" + good + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12), "hole"},
      {"overlap", file_of("{" + good + "," + entry("b", "F32", "[1]", "[2,6]") + "}", 6), "overlaps"},
      {"same_bytes_twice", file_of("{" + good + "," + entry("b", "F32", "[1]", "[0,4]") + "}", 4),
       "overlaps"},
      {"empty_tensor_inside_another", file_of("{" + good + "," + entry("b", "F32", "[0]", "[2,2]") + "}", 4),
       "overlaps"},
      {"bytes_at_end", file_of("{" + good + "}", 5), "belong to no tensor"},
      {"data_without_tensors", file_of("{}", 1), "belong to no tensor"},
      {"data_cut_off", file_of("{" + good + "}", 3), "outside"},
      {"shape_too_large", file_of(one("F32", "[2]", "[0,4]"), 4), "8 bytes, but has 4"},
      {"shape_too_small", file_of(one("F32", "[0]", "[0,4]"), 4), "0 bytes, but has 4"},
      {"shape_product_wraps_to_0", file_of(one("U8", "[4294967296,4294967296]", "[0,0]"), 0), "overflows"},
      {"shape_product_wraps_to_4", file_of(one("F32", "[4611686018427387905]", "[0,4]"), 4), "overflows"},
      {"zero_hides_overflow", file_of(one("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0),
       "overflows"},
      {"axis_over_63_bits", file_of(one("U8", "[9223372036854775808]", "[0,0]"), 0), "2^63"},
      {"axis_negative", file_of(one("U8", "[-1]", "[0,0]"), 0), "negative"},
      {"axis_minus_zero", file_of(one("U8", "[-0]", "[0,0]"), 0), "negative"},
      {"too_many_axes", file_of(one("U8", "[1" + many_axes + "]", "[0,1]"), 1), "64 axes"},
  };
}

TEST(Safetensors, RefusesKnownAttacks) {
  for (const Attack& attack : attacks()) {
    SCOPED_TRACE(attack.name);
    const std::string message = user_error([&] { parse(attack.file); });
    EXPECT_NE(message.find(attack.message), std::string::npos) << message;
    EXPECT_EQ(message.rfind("file: ", 0), 0u) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 400u);
  }
}

// A short header must not be able to make memory use grow.
TEST(Safetensors, RefusesMoreTensorsAndMetadataThanTheCaps) {
  std::string json = "{\"__metadata__\":{";
  for (size_t i = 0; i <= kMaxSafetensorsMetadata; ++i) json += "\"" + std::to_string(i) + "\":\"\",";
  json.back() = '}';
  EXPECT_NE(user_error([&] { parse(file_of(json + "}", 0)); }).find("65536"), std::string::npos);
  json = "{";
  for (size_t i = 0; i <= kMaxSafetensors; ++i) json += entry(std::to_string(i), "U8", "[0]", "[0,0]") + ",";
  json.back() = '}';
  EXPECT_NE(user_error([&] { parse(file_of(json, 0)); }).find("1000000"), std::string::npos);
}

// Every proper prefix and every extension of a good file is refused.
TEST(Safetensors, RefusesEveryTruncation) {
  const std::string file =
      file_of("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "U8", "[2]", "[4,6]") + "}", 6);
  EXPECT_NO_THROW(parse(file));
  for (size_t size = 0; size < file.size(); ++size)
    EXPECT_THROW(parse(file.substr(0, size)), UserError) << size;
  EXPECT_THROW(parse(file + "x"), UserError);
}

TEST(SafetensorsLayout, RoundTripsAndAligns) {
  std::vector<SafetensorsInfo> tensors(4);
  tensors[0] = {"z", SafetensorsType::u8, {3}, 0, 0};
  tensors[1] = {"half", SafetensorsType::bf16, {5}, 0, 0};
  tensors[2] = {"a \"quoted\" π\n", SafetensorsType::f64, {1, 2}, 0, 0};
  tensors[3] = {"scalar", SafetensorsType::f32, {}, 0, 0};
  const SafetensorsLayout layout = layout_safetensors(tensors, {{"key", "value"}});
  ASSERT_EQ(layout.head.size() % 8, 0u);
  const uint64_t data = layout.tensors.back().end;
  EXPECT_EQ(data, 16u + 4 + 10 + 3);
  const SafetensorsHeader header = parse(layout.head + std::string(data, 'x'));
  ASSERT_EQ(header.tensors.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const SafetensorsInfo& read = header.tensors[i];
    EXPECT_EQ(read.name, layout.tensors[i].name);
    EXPECT_EQ(read.begin, layout.tensors[i].begin);
    EXPECT_EQ(read.shape, layout.tensors[i].shape);
    EXPECT_EQ(read.type, layout.tensors[i].type);
    EXPECT_EQ((header.data_offset + read.begin) % type_bytes(read.type), 0u) << read.name;
  }
  EXPECT_EQ(header.metadata, (SafetensorsMetadata{{"key", "value"}}));
}

TEST(SafetensorsLayout, RefusesWhatNoReaderTakes) {
  const SafetensorsInfo a{"a", SafetensorsType::f32, {1}, 0, 0};
  EXPECT_NE(user_error([&] {
              layout_safetensors({a, a}, {});
            }).find("two tensors are named 'a'"),
            std::string::npos);
  EXPECT_THROW(layout_safetensors({{"__metadata__", SafetensorsType::f32, {1}, 0, 0}}, {}), UserError);
  EXPECT_THROW(layout_safetensors({{"\xff", SafetensorsType::f32, {1}, 0, 0}}, {}), UserError);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(layout_safetensors({{"a", SafetensorsType::f32, {huge}, 0, 0}}, {}), UserError);
  std::vector<SafetensorsInfo> sum(3, {"a", SafetensorsType::u8, {huge}, 0, 0});
  sum[1].name = "b";
  sum[2].name = "c";  // 3 x (2^63 - 1) exceeds 2^64
  EXPECT_THROW(layout_safetensors(sum, {}), UserError);
}

}  // namespace
}  // namespace moelab
