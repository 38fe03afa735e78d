#include "proto/safetensors/shallow_json.h"

#include <utility>
#include <vector>

namespace paramshard::safetensors {
namespace {

using nlohmann::json;

// Builds the value from the parser's events.
class Builder final : public json::json_sax_t {
 public:
  Builder(int max_depth, absl::FunctionRef<void(int, const std::string&)> on_key)
      : max_depth_(max_depth), on_key_(on_key) {}

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
    if (dropped_ > 0) return true;
    on_key_(static_cast<int>(open_.size()), name);
    key_ = std::move(name);
    return true;
  }

 private:
  bool Add(json value) {
    if (dropped_ == 0) Place(std::move(value));
    return true;
  }

  bool Open(json empty) {
    if (dropped_ > 0) {
      ++dropped_;
      return true;
    }
    json& placed = Place(std::move(empty));
    if (static_cast<int>(open_.size()) == max_depth_) {
      ++dropped_;
    } else {
      open_.push_back(&placed);
    }
    return true;
  }

  bool Close() {
    if (dropped_ > 0) {
      --dropped_;
    } else {
      open_.pop_back();
    }
    return true;
  }

  json& Place(json value) {
    if (open_.empty()) return root_ = std::move(value);
    json& parent = *open_.back();
    if (parent.is_object()) return parent[key_] = std::move(value);
    return parent.emplace_back(std::move(value));
  }

  const int max_depth_;
  const absl::FunctionRef<void(int, const std::string&)> on_key_;
  json root_;
  std::vector<json*> open_;  // objects and lists around the next value
  std::string key_;
  int dropped_ = 0;  // objects and lists around the next value whose members are left out
};

}  // namespace

json ParseShallowJson(absl::string_view text, int max_depth, absl::FunctionRef<void(int, const std::string&)> on_key) {
  Builder builder(max_depth, on_key);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) return json(json::value_t::discarded);
  return builder.Take();
}

}  // namespace paramshard::safetensors
