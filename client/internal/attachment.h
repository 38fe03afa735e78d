// State that the parts of a session share.
#ifndef PARAMSHARD_CLIENT_INTERNAL_ATTACHMENT_H_
#define PARAMSHARD_CLIENT_INTERNAL_ATTACHMENT_H_

#include <cstdint>

#include "client/client.h"
#include "client/internal/command_executor.h"
#include "client/internal/epoch_page.h"
#include "client/internal/tensor_memory.h"
#include "common/model/layout.h"
#include "common/model/name_index.h"
#include "paramshard/v1/trainer.pb.h"

namespace paramshard::internal {

// One trainer's attachment to one epoch of a model. The session owns all of it.
struct Attachment {
  const Layout& layout;
  const NameIndex& names;
  const v1::EpochStarted& started;  // without the spec
  EpochPage& page;
  TensorMemory& memory;
  CommandExecutor& executor;  // for the call under way
};

}  // namespace paramshard::internal

#endif  // PARAMSHARD_CLIENT_INTERNAL_ATTACHMENT_H_
