#include "server/data_plane/mesh_addresses.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paramshard/v1/cluster.pb.h"

namespace paramshard::server {
namespace {

using ::testing::IsEmpty;

TEST(MeshAddressesTest, ComeBackAsTheyWere) {
  const std::string host(128, '\0');
  const MeshAddresses addresses = {
      {{0, 1}, host + "12345678"}, {{0, 2}, host + "12345679"}, {{3, 0}, ""}, {{3, 1}, "\xff\x01"}, {{3, 9}, "\xff"},
      {{7, 0}, host + "1"}};
  EXPECT_EQ(DecodeAddresses(EncodeAddresses(addresses)), addresses);
  EXPECT_THAT(DecodeAddresses(EncodeAddresses({})), IsEmpty());
}

TEST(MeshAddressesTest, WhatAddressesShareIsWrittenOnce) {
  MeshAddresses addresses;
  for (int mesh = 0; mesh < 8; ++mesh) addresses[{mesh, 500}] = std::string(128, 'h') + std::to_string(1000 + mesh);
  EXPECT_LT(EncodeAddresses(addresses).size(), 300u);
}

TEST(MeshAddressesTest, WhatCannotBeReadIsLeftOut) {
  EXPECT_THAT(DecodeAddresses("no message"), IsEmpty());
  v1::MeshAddresses message;
  v1::MeshAddress& shares_nothing = *message.add_addresses();
  shares_nothing.set_shared_bytes(1);
  EXPECT_THAT(DecodeAddresses(message.SerializeAsString()), IsEmpty());
  // Each address is longer than the one before, at no cost for the sender.
  message.Clear();
  for (int i = 0; i < 40; ++i) {
    v1::MeshAddress& next = *message.add_addresses();
    next.set_mesh(i);
    next.set_shared_bytes(i == 0 ? 0 : 100 * i);
    next.set_rest(std::string(100, 'x'));
  }
  EXPECT_EQ(DecodeAddresses(message.SerializeAsString()).size(), 10u);
}

}  // namespace
}  // namespace paramshard::server
