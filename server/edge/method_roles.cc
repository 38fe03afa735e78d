#include "server/edge/method_roles.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace paramshard::server {
namespace {

using tls::Role;
using Table = std::map<std::string, Roles, std::less<>>;

void Add(Table& table, absl::string_view service, const std::map<std::string, Roles>& methods) {
  for (const auto& [method, roles] : methods) table.emplace(absl::StrCat("/", service, "/", method), roles);
}

Table MakeTable() {
  const Roles anybody = {Role::kNode, Role::kTrainer, Role::kReader, Role::kViewer, Role::kAdmin};
  const Roles exports = {Role::kTrainer, Role::kViewer, Role::kAdmin};
  const Roles inspects = {Role::kViewer, Role::kAdmin};
  const Roles admin = {Role::kAdmin};
  const Roles node = {Role::kNode};
  const Roles reader = {Role::kReader};
  const Roles nobody = {};
  Table table;
  Add(table, "paramshard.v1.AdminService", {{"ListModels", exports},
                                            {"ListShards", inspects},
                                            {"DescribeParameter", inspects},
                                            {"GetParameterStats", inspects},
                                            {"ListSessions", inspects},
                                            {"ListReaders", inspects},
                                            {"ListMirrors", inspects},
                                            {"ActivateMirror", admin},
                                            {"GetMemory", inspects},
                                            {"GetMetrics", inspects},
                                            {"VerifyModel", inspects},
                                            {"ImportFile", nobody},
                                            {"SaveModel", admin},
                                            {"ListSaves", inspects},
                                            {"RestoreModel", admin},
                                            {"HealModel", admin},
                                            {"Drain", admin},
                                            {"Restart", nobody},
                                            {"SetLogLevel", admin},
                                            {"GetTrace", inspects},
                                            {"GetVersion", exports}});
  Add(table, "paramshard.v1.TrainerService",
      {{"GetCapabilities", exports},
       {"CreateModel", nobody},
       {"GetModel", exports},
       {"DeleteModel", admin},
       {"Session", nobody},
       {"Import", admin},
       {"Export", {Role::kTrainer, Role::kAdmin}}});
  Add(table, "paramshard.v1.ReaderService", {{"OpenReader", nobody}});
  Add(table, "paramshard.v1.MirrorService",
      {{"AskVersions", reader}, {"DescribeModel", reader}, {"FetchPlanes", reader}});
  Add(table, "paramshard.v1.ClusterService",
      {{"Join", node}, {"Vote", node}, {"QueryCommit", node}, {"PutValue", node}, {"GetValue", node}});
  Add(table, "grpc.health.v1.Health", {{"Check", anybody}, {"Watch", anybody}});
  Add(table, "grpc.reflection.v1alpha.ServerReflection", {{"ServerReflectionInfo", anybody}});
  return table;
}

}  // namespace

const Roles* RolesOf(absl::string_view path) {
  static const auto* const table = new Table(MakeTable());
  const auto found = table->find(path);
  return found == table->end() ? nullptr : &found->second;
}

std::string RolesText(const Roles& roles) {
  return absl::StrJoin(roles, " or ", [](std::string* text, Role role) { absl::StrAppend(text, tls::RoleName(role)); });
}

}  // namespace paramshard::server
