#!/usr/bin/env bash
# grpcio 1.85.3: where a server's error has 20,000 characters of details, its client sees RESOURCE_EXHAUSTED, not the
# server's code, and nothing of the details. Of characters outside ASCII 2,000 are enough: each takes nine bytes of the
# 16 KiB that headers may have. From 8 KiB on some calls fail so, at random.
source "$(dirname "$0")/environment.sh" grpcio==1.85.3
now=$("$python" - <<'END' 2>/dev/null
from concurrent.futures import ThreadPoolExecutor

import grpc


class Refuses(grpc.GenericRpcHandler):
    def service(self, call):
        def refuse(request, context):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.decode())

        return grpc.unary_unary_rpc_method_handler(refuse)


server = grpc.server(ThreadPoolExecutor(1))
server.add_generic_rpc_handlers([Refuses()])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
    for details in ("x" * 7000, "x" * 20000, "\u4e2d" * 700, "\u4e2d" * 2000):
        try:
            channel.unary_unary("/service/method")(details.encode(), timeout=60)
        except grpc.RpcError as error:
            print(len(details), error.code().name, error.details() == details)
server.stop(None)
END
)
seen='7000 INVALID_ARGUMENT True
20000 RESOURCE_EXHAUSTED False
700 INVALID_ARGUMENT True
2000 RESOURCE_EXHAUSTED False'
conclude "$seen" "$now" "grpcio 1.85.3: an error with 2,000 characters of details outside ASCII is RESOURCE_EXHAUSTED"
