#include "server/restores/world_restores.h"

#include "absl/strings/str_cat.h"
#include "proto/model/names.h"

namespace paramshard::server {

WorldRestores::WorldRestores(Options options) : options_(std::move(options)) {
  if (options_.store->world().cluster->node() == 0) {
    leader_ = std::make_unique<RestoreLeader>(
        RestoreLeader::Options{.store = options_.store,
                               .timeout = options_.timeout,
                               .clock = options_.clock,
                               .draw_id = options_.draw_id,
                               .before_go = [this] { options_.at(Point::kGo); },
                               .before_rows = [this] { options_.at(Point::kRows); },
                               .before_written = [this] { options_.at(Point::kWritten); },
                               .before_end = [this] { options_.at(Point::kEnd); }});
  } else {
    follower_ = std::make_unique<RestoreFollower>(
        RestoreFollower::Options{.store = options_.store,
                                 .timeout = options_.timeout,
                                 .clock = options_.clock,
                                 .draw_id = options_.draw_id,
                                 .before_ready = [this] { options_.at(Point::kReady); },
                                 .before_rows = [this] { options_.at(Point::kRows); },
                                 .before_written = [this] { options_.at(Point::kWritten); }});
  }
  options_.store->SetRestoreListener(this);
}

WorldRestores::~WorldRestores() { options_.store->SetRestoreListener(nullptr); }

void WorldRestores::BeginDrain() {
  if (leader_ != nullptr) leader_->BeginDrain();
  if (follower_ != nullptr) follower_->BeginDrain();
}

absl::Status WorldRestores::CheckLeads(absl::string_view model) const {
  if (leader_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("restore ", DisplayName(model),
                   ": a call to node 0 expected, which leads the restores of its world, got one to node ",
                   options_.store->world().cluster->node()));
}

void WorldRestores::OnCreatedFresh(const std::string& model) {
  if (leader_ != nullptr) leader_->OnCreatedFresh(model);
  if (follower_ != nullptr) follower_->OnCreatedFresh(model);
}

void WorldRestores::OnRestoreNews(const RestoreNews& news) {
  if (leader_ != nullptr) leader_->OnNews(news);
  if (follower_ != nullptr) follower_->OnNews(news);
}

}  // namespace paramshard::server
