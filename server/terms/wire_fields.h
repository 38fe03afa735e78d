// How a value names its fields on the wire: a function beside each struct, which the codec
// (server/world/cluster_messages) calls with its writer or reader.
#ifndef PARAMSHARD_SERVER_TERMS_WIRE_FIELDS_H_
#define PARAMSHARD_SERVER_TERMS_WIRE_FIELDS_H_

#include <array>
#include <type_traits>
#include <variant>

namespace paramshard::server {

// T is this type, const or not: one function writes and reads.
//
//   void Fields(ConstOr<Moved> auto& m, const auto& f) { f("connection", m.connection); }
template <typename T, typename Value>
concept ConstOr = std::is_same_v<std::remove_const_t<T>, Value>;

// Names of a variant's cases on the wire, in its order; null for messages within a daemon, which are not sent.
template <typename Variant>
using CaseNames = std::array<const char*, std::variant_size_v<Variant>>;
template <typename Variant>
inline constexpr CaseNames<Variant> kCaseNames = {};

}  // namespace paramshard::server

#endif  // PARAMSHARD_SERVER_TERMS_WIRE_FIELDS_H_
