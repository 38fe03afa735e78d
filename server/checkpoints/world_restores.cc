#include "server/checkpoints/world_restores.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "common/model/names.h"

namespace paramshard::server {

WorldRestores::WorldRestores(Options options) : options_(std::move(options)) {
  if (options_.store->world().cluster->node() == 0) {
    leader_ = std::make_unique<RestoreLeader>(RestoreLeader::Options{
        .store = options_.store,
        .timeout = options_.timeout,
        .clock = options_.clock,
        .draw_id = options_.draw_id,
        .roll_back = [this](const std::string& model, const absl::Status& why) { rollbacks_->Begin(model, why); },
        .before_go = [this] { options_.at(Point::kGo); },
        .before_rows = [this] { options_.at(Point::kRows); },
        .before_written = [this] { options_.at(Point::kWritten); },
        .before_end = [this] { options_.at(Point::kEnd); }});
    rollbacks_ =
        std::make_unique<RollbackLeader>(RollbackLeader::Options{.store = options_.store, .leader = leader_.get()});
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

// Restores in progress end soon, and no restore begins any more.
WorldRestores::~WorldRestores() {
  options_.store->SetRestoreListener(nullptr);
  BeginDrain();
}

void WorldRestores::BeginDrain() {
  if (leader_ != nullptr) leader_->BeginDrain();
  if (follower_ != nullptr) follower_->BeginDrain();
}

absl::Status WorldRestores::CheckLeads(absl::string_view model) const {
  if (leader_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("restore ", DisplayName(model),
                                                    ": only node 0 starts restores, this is node ",
                                                    options_.store->world().cluster->node(), "; call node 0"));
}

void WorldRestores::OnCreatedFresh(const std::string& model) {
  if (leader_ != nullptr) leader_->OnCreatedFresh(model);
  if (follower_ != nullptr) follower_->OnCreatedFresh(model);
}

void WorldRestores::OnRestoreNews(const RestoreNews& news) {
  if (const auto* const need = std::get_if<RollbackNeed>(&news.what); need != nullptr && rollbacks_ != nullptr) {
    return rollbacks_->Begin(news.model, need->why);
  }
  if (leader_ != nullptr) leader_->OnNews(news);
  if (follower_ != nullptr) follower_->OnNews(news);
}

}  // namespace paramshard::server
