// The daemon's answers as text for people. Lists that are empty say so.
#ifndef PARAMSHARD_CLIENT_CTL_TABLES_H_
#define PARAMSHARD_CLIENT_CTL_TABLES_H_

#include <string>
#include <vector>

#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {

std::string ModelsText(const v1::ListModelsResponse& response);
std::string ShardsText(const v1::ListShardsResponse& response);
std::string ParameterText(const v1::DescribeParameterResponse& response);
std::string StatsText(const v1::GetParameterStatsResponse& response);
std::string SessionsText(const v1::ListSessionsResponse& response);
std::string MemoryText(const v1::GetMemoryResponse& response);
std::string ExtentsText(const std::vector<v1::ExtentVerification>& extents);
// One line, with the whole state hash.
std::string SummaryText(const v1::VerifySummary& summary);
std::string ImportText(const v1::ImportFileResponse& response);
std::string DrainText(const v1::DrainResponse& response);
std::string VersionText(const v1::GetVersionResponse& response);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_TABLES_H_
