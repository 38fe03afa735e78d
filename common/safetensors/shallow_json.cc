#include "common/safetensors/shallow_json.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"

namespace paramshard::safetensors {
namespace {

using nlohmann::json;

// Builds the value from the parser's events.
class Builder final : public json::json_sax_t {
 public:
  Builder(int max_depth, absl::FunctionRef<bool(const JsonMember&)> take) : max_depth_(max_depth), take_(take) {}

  json Take() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override { return Add(value); }
  bool string(string_t& value) override { return Add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return Open(json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(json::array()); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  bool key(string_t& name) override {
    if (dropped_ == 0) key_ = std::move(name);
    return true;
  }

 private:
  // An object or a list around the next value.
  struct Level {
    std::string name;  // empty for an element of a list, and for the whole text
    json value;
  };

  bool Add(json value) {
    if (dropped_ == 0) Place(key_, std::move(value));
    return true;
  }

  bool Open(json empty) {
    if (dropped_ > 0 || static_cast<int>(open_.size()) == max_depth_) {
      if (dropped_++ == 0) Place(key_, std::move(empty));
      return true;
    }
    const bool is_member = !open_.empty() && open_.back().value.is_object();
    open_.push_back({is_member ? std::move(key_) : std::string(), std::move(empty)});
    return true;
  }

  bool Close() {
    if (dropped_ > 0) {
      --dropped_;
      return true;
    }
    Level whole = std::move(open_.back());
    open_.pop_back();
    Place(whole.name, std::move(whole.value));
    return true;
  }

  void Place(std::string& name, json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Level& parent = open_.back(); !parent.value.is_object()) {
      parent.value.push_back(std::move(value));
    } else if (!take_({static_cast<int>(open_.size()), parent.name, name, value})) {
      parent.value[std::move(name)] = std::move(value);
    }
  }

  const int max_depth_;
  const absl::FunctionRef<bool(const JsonMember&)> take_;
  json root_;
  std::vector<Level> open_;
  std::string key_;
  int dropped_ = 0;  // objects and lists around the next value whose members are left out
};

}  // namespace

json ParseShallowJson(absl::string_view text, int max_depth, absl::FunctionRef<bool(const JsonMember&)> take) {
  Builder builder(max_depth, take);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return json(json::value_t::discarded);
  return builder.Take();
}

std::string JsonText(absl::string_view text) {
  const auto is_plain = [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); };
  // The library decodes every character and allocates for every text: too slow for the names of 100,000 tensors.
  if (!std::all_of(text.begin(), text.end(), is_plain)) {
    return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  std::string quoted = "\"";
  quoted.reserve(text.size() + 2);
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted.push_back('\\');
    quoted.push_back(c);
  }
  return quoted + "\"";
}

}  // namespace paramshard::safetensors
