// Texts about saves, for people.
#ifndef PARAMSHARD_CLIENT_CTL_SAVE_TEXT_H_
#define PARAMSHARD_CLIENT_CTL_SAVE_TEXT_H_

#include <string>

#include "paramshard/v1/admin.pb.h"

namespace paramshard::ctl {

// "copying", "writing 42 %", "published", "already saved".
std::string SaveStateCell(const v1::Save& save);

// One line: the state of a save.
std::string SaveText(const v1::SaveModelResponse& response);

// A table of saves, and a line of counts for each model.
std::string SavesText(const v1::ListSavesResponse& response);

}  // namespace paramshard::ctl

#endif  // PARAMSHARD_CLIENT_CTL_SAVE_TEXT_H_
