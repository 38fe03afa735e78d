#include "absl/strings/str_cat.h"
#include "client/ctl/cell.h"
#include "client/ctl/commands.h"
#include "client/ctl/commands/broken_devices.h"
#include "client/ctl/options.h"
#include "client/ctl/table.h"

namespace paramshard::ctl {
namespace {

std::string ShardsText(const v1::ListShardsResponse& response) {
  if (response.shards().empty()) return absl::StrCat("no shards\n", BrokenDevicesText(response));
  Table table({Left("PARAMETER"), Left("UNIT"), Right("RANK"), Left("DEVICE"), Left("FORMAT"), Right("FIRST ROW"),
               Right("ROWS"), Right("COLUMNS"), Right("PLANES"), Right("OPTIMIZER"), Left("SMALL")});
  for (const v1::Shard& shard : response.shards()) {
    table.AddRow({shard.parameter(), shard.unit(), absl::StrCat(shard.rank()), shard.device(),
                  FormatCell(shard.format()), absl::StrCat(shard.first_row()), absl::StrCat(shard.rows()),
                  absl::StrCat(shard.columns()), BytesCell(shard.plane_bytes()), BytesCell(shard.optimizer_bytes()),
                  YesNoCell(shard.small())});
  }
  return absl::StrCat(table.Text(), BrokenDevicesText(response));
}

constexpr int kMaxPageSize = 10000;

class Shards final : public Command {
 public:
  void AddOptions(CLI::App& app) override {
    AddModelArgument(app, model_);
    app.add_option("--page-size", page_size_, "extents to ask for at a time (default: 1000)")
        ->check(CLI::Range(1, kMaxPageSize));
  }
  std::vector<std::string> Objects() const override { return {model_}; }
  absl::StatusOr<int> Run(const Context& context) override {
    ASSIGN_OR_RETURN(AdminClient client, context.Connect());
    ASSIGN_OR_RETURN(const v1::ListShardsResponse shards, ListAll(client));
    return context.Write(shards, ShardsText);
  }

 private:
  // Returns the shards of all pages as one answer without a page token.
  absl::StatusOr<v1::ListShardsResponse> ListAll(AdminClient& client) const;

  std::string model_;
  int page_size_ = 0;  // 0: the daemon's default
};

absl::StatusOr<v1::ListShardsResponse> Shards::ListAll(AdminClient& client) const {
  v1::ListShardsRequest request;
  request.set_model(model_);
  request.set_page_size(page_size_);
  v1::ListShardsResponse all;
  do {
    v1::ListShardsResponse page;
    RETURN_IF_ERROR(client.Call(&AdminClient::Stub::ListShards, request, page));
    if (!page.next_page_token().empty() && page.next_page_token() == request.page_token()) {
      return absl::InternalError("the daemon sent the same page token twice");
    }
    request.set_page_token(page.next_page_token());
    all.clear_broken_devices();  // every page has all of them
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  all.clear_next_page_token();
  return all;
}

}  // namespace

const CommandInfo kShards = {
    .name = "shards", .help = "list a model's extents on this daemon", .create = Create<Shards>};

}  // namespace paramshard::ctl
