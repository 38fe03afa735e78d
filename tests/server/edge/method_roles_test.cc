#include "server/edge/method_roles.h"

#include <google/protobuf/descriptor.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "paramshard/v1/admin.pb.h"
#include "paramshard/v1/cluster.pb.h"
#include "paramshard/v1/mirror.pb.h"
#include "paramshard/v1/reader.pb.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::server {
namespace {

using tls::Role;

std::string Path(absl::string_view service, absl::string_view method) {
  return absl::StrCat("/", service, "/", method);
}

// A new method needs a decision on its roles.
TEST(MethodRolesTest, EveryMethodOfOurServicesIsInTheTable) {
  const google::protobuf::FileDescriptor* const files[] = {
      v1::ListModelsRequest::descriptor()->file(), v1::JoinRequest::descriptor()->file(),
      v1::GetModelRequest::descriptor()->file(), v1::OpenReaderRequest::descriptor()->file(),
      v1::AskVersionsRequest::descriptor()->file()};
  int methods = 0;
  for (const auto* file : files) {
    for (int i = 0; i < file->service_count(); ++i) {
      const auto& service = *file->service(i);
      for (int j = 0; j < service.method_count(); ++j, ++methods) {
        EXPECT_NE(RolesOf(Path(service.full_name(), service.method(j)->name())), nullptr) << service.method(j)->name();
      }
    }
  }
  EXPECT_GE(methods, 26);
}

TEST(MethodRolesTest, NodesAloneSpeakAsNodes) {
  for (const char* method : {"Join", "Vote", "QueryCommit", "PutValue", "GetValue"}) {
    EXPECT_EQ(*RolesOf(Path("paramshard.v1.ClusterService", method)), Roles{Role::kNode}) << method;
  }
}

TEST(MethodRolesTest, WhatChangesStateIsTheAdminsAlone) {
  for (const char* method : {"SaveModel", "RestoreModel", "Drain", "SetLogLevel"}) {
    EXPECT_EQ(*RolesOf(Path("paramshard.v1.AdminService", method)), Roles{Role::kAdmin}) << method;
  }
  for (const char* method : {"DeleteModel", "Import"}) {
    EXPECT_EQ(*RolesOf(Path("paramshard.v1.TrainerService", method)), Roles{Role::kAdmin}) << method;
  }
}

TEST(MethodRolesTest, WhatUsesTheDaemonsMachineIsNobodysOverTheNetwork) {
  for (const char* method : {"TrainerService/CreateModel", "TrainerService/Session", "ReaderService/OpenReader",
                             "AdminService/ImportFile", "AdminService/Restart"}) {
    EXPECT_EQ(*RolesOf(absl::StrCat("/paramshard.v1.", method)), Roles{}) << method;
  }
  EXPECT_EQ(RolesText({Role::kAdmin, Role::kViewer}), "viewer or admin");
}

TEST(MethodRolesTest, AReaderMayMirrorAndNothingElse) {
  for (const char* method : {"AskVersions", "DescribeModel", "FetchPlanes"}) {
    EXPECT_EQ(*RolesOf(absl::StrCat("/paramshard.v1.MirrorService/", method)), Roles{Role::kReader}) << method;
  }
  for (const char* method :
       {"AdminService/ListModels", "AdminService/ActivateMirror", "TrainerService/Export", "ClusterService/Join"}) {
    EXPECT_FALSE(RolesOf(absl::StrCat("/paramshard.v1.", method))->contains(Role::kReader)) << method;
  }
}

TEST(MethodRolesTest, OtherPathsAreNoMethods) {
  for (const char* path :
       {"", "/", "Drain", "/paramshard.v1.AdminService/drain", "/paramshard.v1.AdminService/Drain/"}) {
    EXPECT_EQ(RolesOf(path), nullptr) << path;
  }
}

}  // namespace
}  // namespace paramshard::server
